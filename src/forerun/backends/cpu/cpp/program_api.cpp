// Functions for Python to build and run programs, and to move rows of a cache.
#include <cstring>
#include <vector>

#include "export.h"
#include "program.h"

FORERUN_EXPORT void* forerun_program_new(const forerun::Shape* shape, const forerun::Op* ops, int num_ops,
                                         int num_buffers) {
    return new forerun::Program(*shape, ops, num_ops, num_buffers);
}

FORERUN_EXPORT void forerun_program_free(void* program) { delete static_cast<forerun::Program*>(program); }

// False if there is not enough memory.
FORERUN_EXPORT bool forerun_program_set_buffers(void* program, const forerun::Buffer* buffers, int max_rows) {
    return static_cast<forerun::Program*>(program)->set_buffers(buffers, max_rows);
}

// Runs ops [first_op, last_op); `output` becomes the memory of buffer number `output_buffer`. Returns false and runs
// nothing if there is not enough memory.
FORERUN_EXPORT bool forerun_program_run(void* program, const forerun::Pass* pass, int output_buffer, float* output,
                                        int first_op, int last_op, int num_threads) {
    auto* self = static_cast<forerun::Program*>(program);
    self->set_output(output_buffer, output);
    return self->run(*pass, first_op, last_op, num_threads);
}

// In each of `num_parts` parts of `part_bytes` bytes, copies slots `sources` of `slot_bytes` bytes to slots start,
// start + 1, ... as if all were read before the first is written.
FORERUN_EXPORT void forerun_move_slots(char* storage, int num_parts, int64_t part_bytes, int64_t slot_bytes,
                                       const int64_t* sources, int num_sources, int64_t start) {
    std::vector<char> rows(static_cast<size_t>(num_sources * slot_bytes));
    for (int part = 0; part < num_parts; part++, storage += part_bytes) {
        for (int i = 0; i < num_sources; i++)
            std::memcpy(rows.data() + i * slot_bytes, storage + sources[i] * slot_bytes,
                        static_cast<size_t>(slot_bytes));
        std::memcpy(storage + start * slot_bytes, rows.data(), rows.size());
    }
}
