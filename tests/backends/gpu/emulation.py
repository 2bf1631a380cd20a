"""Triton's interpreter, without work that it does again and again to no effect."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from types import FunctionType
from typing import Any

from triton.language import core, semantic
from triton.runtime import interpreter


class NothingToRestore:
    """What a launch ends with, where the language stays as it is."""

    def restore(self) -> None:
        pass


@cache
def spare_idle_work() -> None:
    """Emulated kernels compute the same in a third of the time.

    At each launch, and at each call of a function in a kernel, the interpreter puts its own functions into Triton's
    language anew. Here it does so once for each function, and they stay: nothing in this process needs the language
    without them, as kernels are compiled in processes of their own (`separate`). And of each sum and product of
    integers it computes whether it overflows, which it then tells nobody: assertions of kernels are off. Every
    result has its type, and each type its shape: here a shape is checked and wrapped once.
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
    keep_shapes()
    keep_dtypes()
    pass_equal_shapes()


def keep_shapes() -> None:
    """Of types and results alike in shape, all that follows from the shape is made once."""
    check = core.block_type.__init__
    wrap = core.tensor.__init__

    @cache
    def checked(shape: tuple[int, ...]) -> core.block_type:
        found = core.block_type.__new__(core.block_type)
        check(found, core.int1, list(shape))
        return found

    @cache
    def wrapped(shape: tuple[int, ...]) -> core.tensor:
        found = core.tensor.__new__(core.tensor)
        wrap(found, None, core.block_type(core.int1, list(shape)) if shape else core.int1)
        return found

    def block_type(self: Any, element_ty: core.dtype, shape: Iterable[Any]) -> None:
        known = checked(tuple(size.value if isinstance(size, core.constexpr) else size for size in shape))
        self.element_ty = element_ty
        self.shape = known.shape
        self.numel = known.numel
        self.name = f"<{known.shape}, {element_ty}>"

    def tensor(self: Any, handle: Any, kind: core.dtype) -> None:
        known = wrapped(tuple(kind.shape) if kind.is_block() else ())
        self.handle = handle
        self.type = kind
        self.dtype = kind.scalar
        self.shape = known.shape
        self.numel = known.numel

    # Those of another Triton may have more.
    if vars(checked((2, 4))).keys() == {"element_ty", "shape", "numel", "name"}:
        core.block_type.__init__ = block_type
    if vars(wrapped((2, 4))).keys() == {"handle", "shape", "numel", "type", "dtype"}:
        core.tensor.__init__ = tensor


def keep_dtypes() -> None:
    """numpy's name of a type is looked up once, in a table that is made for each question."""
    if not hasattr(interpreter, "_get_np_dtype"):
        return
    find = interpreter._get_np_dtype
    plain = cache(find)

    def np_dtype(kind: core.dtype) -> Any:
        return find(kind) if isinstance(kind, (core.pointer_type, core.block_type)) else plain(kind)

    interpreter._get_np_dtype = np_dtype


def pass_equal_shapes() -> None:
    """Of two blocks of one shape neither is broadcast, which takes the interpreter long to find out."""
    if not hasattr(semantic.TritonSemantic, "broadcast_impl_value"):
        return
    broadcast = semantic.TritonSemantic.broadcast_impl_value

    def compatible(self: semantic.TritonSemantic, left: core.tensor, right: core.tensor) -> tuple[Any, Any]:
        is_block = left.type.is_block() and right.type.is_block()
        return (left, right) if is_block and left.type.shape is right.type.shape else broadcast(self, left, right)

    semantic.TritonSemantic.broadcast_impl_value = compatible
