// Marks the functions that the library exports to Python.
#pragma once

#ifdef _WIN32
#define FORERUN_EXPORT extern "C" __declspec(dllexport)
#else
#define FORERUN_EXPORT extern "C" __attribute__((visibility("default")))
#endif
