"""Inner loops over signed bytes and float32 in vectors that are spelled out.

A loop over 32 numbers with a scale before and after it is too short for LLVM to turn into vectors by itself:
it checks each time whether its arrays overlap. Here the vectors are LLVM's own generic ones, 16 lanes wide,
so they become whatever the machine has. Sums are taken in any order, as `attend` allows.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""Numbers of a vector; a row and a block have to be whole multiples."""

_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_LOOSE = ("reassoc", "contract", "nsz")


def _vector(n=LANES, of=_F32):
    return ir.VectorType(of, n)


def _at(builder, address, offset=0, step=1):
    """An address and `offset` times `step` bytes."""
    offset = ir.Constant(_I64, offset) if isinstance(offset, int) else offset
    return builder.add(address, builder.mul(offset, ir.Constant(_I64, step)))


def _load(builder, address, kind):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _store(builder, value, address):
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def _splat(builder, number, n=LANES):
    undefined = ir.Constant(_vector(n), ir.Undefined)
    one = builder.insert_element(undefined, number, _I32(0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_I32, n), [0] * n))


def _pick(builder, a, b, lanes):
    mask = ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes))
    return builder.shuffle_vector(a, b, mask)


def _zero(n=LANES):
    return ir.Constant(_vector(n), [0.0] * n)


def _variables(builder, count):
    """Vectors that a loop adds to; LLVM keeps them in registers."""
    made = [cgutils.alloca_once(builder, _vector()) for _ in range(count)]
    for variable in made:
        builder.store(_zero(), variable)
    return made


def _add_product(builder, variable, a, b):
    product = builder.fmul(a, b, flags=_LOOSE)
    builder.store(builder.fadd(builder.load(variable), product, flags=_LOOSE), variable)


def _scaled_steps(builder, steps, scale):
    """Sixteen signed bytes at an address as floats, times a scale."""
    values = builder.sitofp(_load(builder, steps, _vector(of=_I8)), _vector())
    return builder.fmul(values, _splat(builder, _load(builder, scale, _F32)), flags=_LOOSE)


def _fold_four(builder, four, fold):
    """Four vectors, each folded over its lanes, as a vector of four. Shuffles stay within 128 bits as long as
    they can."""
    found = four
    for low, high in (((0, 1, 16, 17), (2, 3, 18, 19)), ((0, 2, 16, 18), (1, 3, 17, 19))):
        low, high = ([lane + i for i in range(0, LANES, 4) for lane in lanes] for lanes in (low, high))
        found = [
            fold(_pick(builder, a, b, low), _pick(builder, a, b, high))
            for a, b in zip(found[::2], found[1::2], strict=True)
        ]
    total = found[0]
    for half in (8, 4):
        low, high = (_pick(builder, total, total, range(i, i + half)) for i in (0, half))
        total = fold(low, high)
    return total


def _sum_four(builder, four):
    return _fold_four(builder, four, lambda a, b: builder.fadd(a, b, flags=_LOOSE))


def _larger(builder, a, b):
    return builder.select(builder.icmp_signed(">", a, b), a, b)


@intrinsic
def block_tops(typingctx, source, vectors, blocks, out):
    """Write the largest magnitude, as int32 bits, of each block of `16 · vectors` float32, from addresses."""

    def codegen(context, builder, signature, args):
        source, vectors, blocks, out = args
        bits = _vector(of=_I32)
        magnitude = ir.Constant(bits, [0x7FFFFFFF] * LANES)

        def tops(first, count):
            starts = [
                _at(builder, source, builder.mul(builder.add(first, _I64(i)), vectors), 4 * LANES)
                for i in range(count)
            ]
            found = [cgutils.alloca_once(builder, bits) for _ in range(count)]
            for variable in found:
                builder.store(ir.Constant(bits, [0] * LANES), variable)
            with cgutils.for_range(builder, vectors) as loop:
                for variable, start in zip(found, starts, strict=True):
                    came = _load(builder, _at(builder, start, loop.index, 4 * LANES), bits)
                    came = builder.and_(came, magnitude)
                    builder.store(_larger(builder, builder.load(variable), came), variable)
            return [builder.load(variable) for variable in found]

        whole = builder.and_(blocks, _I64(-4))
        with cgutils.for_range_slice(builder, _I64(0), whole, _I64(4)) as (first, _):
            four = _fold_four(builder, tops(first, 4), lambda a, b: _larger(builder, a, b))
            _store(builder, four, _at(builder, out, first, 4))
        with cgutils.for_range_slice(builder, whole, blocks, _I64(1)) as (first, _):
            (one,) = tops(first, 1)
            four = _fold_four(builder, [one] * 4, lambda a, b: _larger(builder, a, b))
            _store(builder, builder.extract_element(four, _I32(0)), _at(builder, out, first, 4))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def fetch_ahead(typingctx, address, count):
    """Ask for bytes that will soon be read; an address where nothing lies does no harm."""

    def codegen(context, builder, signature, args):
        pointer, number = _I8.as_pointer(), _I32
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        with cgutils.for_range_slice(builder, _I64(0), args[1], _I64(64)) as (offset, _):
            line = builder.inttoptr(builder.add(args[0], offset), pointer)
            builder.call(fetch, [line, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def make_dots(rows):
    """Return `dots(queries, stride, steps, scales, vectors, blocks, shift, n, out, out_stride)` for so many
    query rows.

    It multiplies every row with n keys. queries: address of float32 rows, `stride` bytes apart; steps: of
    `16 · vectors` signed bytes a key; scales: of float32, `blocks` a key, one for each 2**shift vectors;
    out: of float32 rows `[n]`, `out_stride` bytes apart.
    """

    @intrinsic
    def dots(typingctx, queries, stride, steps, scales, vectors, blocks, shift, n, out, out_stride):
        def codegen(context, builder, signature, args):
            queries, stride, steps, scales, vectors, blocks, shift, n, out, out_stride = args
            width = builder.mul(vectors, _I64(LANES))

            def products(first, keys):
                """The sums, not yet over lanes, of some keys from the first one on: a list for each row."""
                sums = [_variables(builder, keys) for _ in range(rows)]
                numbers = [builder.add(first, _I64(i)) for i in range(keys)]
                starts = [builder.add(steps, builder.mul(number, width)) for number in numbers]
                shared = [_at(builder, scales, builder.mul(number, blocks), 4) for number in numbers]
                with cgutils.for_range(builder, vectors) as loop:
                    here = _at(builder, queries, loop.index, 4 * LANES)
                    at = [builder.add(here, builder.mul(stride, _I64(r))) for r in range(rows)]
                    query = [_load(builder, address, _vector()) for address in at]
                    block = builder.lshr(loop.index, shift)
                    for i in range(keys):
                        scale = _at(builder, shared[i], block, 4)
                        key = _scaled_steps(builder, _at(builder, starts[i], loop.index, LANES), scale)
                        for r in range(rows):
                            _add_product(builder, sums[r][i], key, query[r])
                return [[builder.load(x) for x in row] for row in sums]

            def target(r, first):
                row = builder.add(out, builder.mul(out_stride, _I64(r)))
                return _at(builder, row, first, 4)

            whole = builder.and_(n, _I64(-4))
            with cgutils.for_range_slice(builder, _I64(0), whole, _I64(4)) as (first, _):
                for r, four in enumerate(products(first, 4)):
                    _store(builder, _sum_four(builder, four), target(r, first))
            with cgutils.for_range_slice(builder, whole, n, _I64(1)) as (first, _):
                for r, one in enumerate(products(first, 1)):
                    four = _sum_four(builder, [*one, _zero(), _zero(), _zero()])
                    total = builder.extract_element(four, _I32(0))
                    _store(builder, total, target(r, first))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), codegen

    return dots


def make_weigh(rows, halves):
    """Return `weigh(weights, stride, steps, width, scales, blocks, second, n, out, out_stride)` for rows.

    It adds 16 or 32 (`halves` 1 or 2) channels of n values to every row's sums, by weight. weights: address
    of float32, a row's `stride` bytes apart; steps: of signed bytes, a token's `width` apart; scales: of
    float32, a token's `blocks` apart, that of the second half `second` behind that of the first; out: of
    float32 rows, `out_stride` bytes apart.
    """

    @intrinsic
    def weigh(typingctx, weights, stride, steps, width, scales, blocks, second, n, out, out_stride):
        def codegen(context, builder, signature, args):
            weights, stride, steps, width, scales, blocks, second, n, out, out_stride = args
            sums = _variables(builder, rows * halves)
            with cgutils.for_range(builder, n) as loop:
                at = builder.add(steps, builder.mul(loop.index, width))
                scale = _at(builder, scales, builder.mul(loop.index, blocks), 4)
                values = [_scaled_steps(builder, at, scale)]
                if halves == 2:
                    scale = _at(builder, scale, second, 4)
                    values.append(_scaled_steps(builder, _at(builder, at, LANES), scale))
                here = _at(builder, weights, loop.index, 4)
                for r in range(rows):
                    weight = builder.add(here, builder.mul(stride, ir.Constant(_I64, r)))
                    weight = _splat(builder, _load(builder, weight, _F32))
                    for half, value in enumerate(values):
                        _add_product(builder, sums[r * halves + half], value, weight)
            for r in range(rows):
                row = builder.add(out, builder.mul(out_stride, ir.Constant(_I64, r)))
                for half in range(halves):
                    target = _at(builder, row, half, 4 * LANES)
                    total = builder.fadd(
                        _load(builder, target, _vector()), builder.load(sums[r * halves + half])
                    )
                    _store(builder, total, target)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), codegen

    return weigh


def make_steps(is_float):
    """Return `steps(packed, chunks, out)` for FP4 E2M1 or INT4: nibbles to steps, 64 at a time.

    packed: address of 32 · chunks bytes, low nibble first; out: of 64 · chunks signed bytes. A step of FP4 is
    a half: with two exponent bits its values are 0, 1, 2, 3, 4, 6, 8 and 12 steps.
    """
    bytes32, bytes64 = _vector(32, _I8), _vector(64, _I8)

    def number(n, kind=bytes64):
        return ir.Constant(kind, [n] * kind.count)

    def above(builder, magnitude, start):
        kind = ir.FunctionType(bytes64, [bytes64, bytes64])
        minus = cgutils.get_or_insert_function(builder.module, kind, "llvm.usub.sat.v64i8")
        return builder.call(minus, [magnitude, number(start)])

    def decode(builder, code):
        if not is_float:
            return builder.sub(builder.xor(code, number(8)), number(8))
        magnitude = builder.and_(code, number(7))
        second = above(builder, magnitude, 6)
        steps = builder.add(magnitude, above(builder, magnitude, 4))
        steps = builder.add(steps, builder.add(second, second))
        negative = builder.icmp_unsigned("!=", builder.and_(code, number(8)), number(0))
        return builder.select(negative, builder.sub(number(0), steps), steps)

    @intrinsic
    def steps(typingctx, packed, chunks, out):
        def codegen(context, builder, signature, args):
            packed, chunks, out = args
            with cgutils.for_range(builder, chunks) as loop:
                both = _load(builder, _at(builder, packed, loop.index, 32), bytes32)
                high = builder.lshr(both, number(4, bytes32))
                pairs = [lane for i in range(32) for lane in (i, 32 + i)]
                code = builder.and_(_pick(builder, both, high, pairs), number(15))
                _store(builder, decode(builder, code), _at(builder, out, loop.index, 64))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return steps
