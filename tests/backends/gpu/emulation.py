"""Triton's interpreter, without work that it does again and again to no effect."""

from dataclasses import replace
from functools import cache
from types import FunctionType

from triton.runtime import interpreter


class NothingToRestore:
    """What a launch ends with, where the language stays as it is."""

    def restore(self) -> None:
        pass


@cache
def spare_idle_work() -> None:
    """Emulated kernels compute the same in less than half the time.

    At each launch, and at each call of a function in a kernel, the interpreter puts its own functions into Triton's
    language anew. Here it does so once for each function, and they stay: nothing in this process needs the language
    without them, as kernels are compiled in processes of their own (`separate`). And of each sum and product of
    integers it computes whether it overflows, which it then tells nobody: assertions of kernels are off.
    """
    builder = interpreter.interpreter_builder
    if not hasattr(interpreter, "_patch_lang") or not hasattr(builder.options, "sanitize_overflow"):
        return  # another Triton, which takes its time
    patch = interpreter._patch_lang

    @cache
    def patch_once(kernel: FunctionType) -> NothingToRestore:
        patch(kernel)
        return NothingToRestore()

    interpreter._patch_lang = patch_once
    assert not builder.options.debug, "then it does tell"
    builder.options = replace(builder.options, sanitize_overflow=False)
