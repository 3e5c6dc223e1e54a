"""What compiled loops do with 16 numbers at once, written as LLVM's instructions, since numba has no words for it.

LLVM makes of them whatever the processor has. A transform is straight code: its steps are known when it is compiled, so
it reads nothing but the rows that it mixes, and most of those stay in registers. Nothing is reordered, and fused only
in a transform: its result is known to a bound of its rounding, and where that is not enough, sums are exact.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, TypeAlias

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from psyche.modeling.distro.codec import HIGH_LEVEL
from psyche.modeling.distro.loops.fast_dct import Program, make_programs

LANES: Final = 16
WORD: Final = 64  # numbers that `match` looks at
DCT: Final = 0  # forms of `transform_columns`
INVERSE: Final = 1
INFINITY: Final = 0x7F800000  # magnitudes from this bit pattern on are infinite or NaN
_FLOATS: Final = ir.VectorType(ir.FloatType(), LANES)
_DOUBLES: Final = ir.VectorType(ir.DoubleType(), LANES)
_INTS: Final = ir.VectorType(ir.IntType(32), LANES)
_MASK: Final = ir.VectorType(ir.IntType(1), LANES)
_COUNT: Final = _INTS(list(range(LANES)))
_GROUP: Final = 4  # entries whose bits are read as one word
_INDEX: Final = ir.IntType(64)
_INT: Final = ir.IntType(32)
_ANY: Final = None  # kind of an array, or of a number that is known at compile time
Builder: TypeAlias = ir.IRBuilder
Pointer: TypeAlias = Any
Value: TypeAlias = Any


def _operation(result: Any, *kinds: Any) -> Callable[[Callable[..., Any]], Any]:
    """Let compiled loops call what a function generates. It gets pointers for arrays, and constants as they are."""

    def wrap(generate: Callable[..., Any]) -> Any:
        def take(context: Any, builder: Builder, kind: Any, value: Any) -> Any:
            if isinstance(kind, types.Array):
                return context.make_array(kind)(context, builder, value).data
            return kind.literal_value if isinstance(kind, types.Literal) else value

        def emit(context: Any, builder: Builder, signature: Any, given: Sequence[Any]) -> Any:
            made = generate(builder, *(take(context, builder, *one) for one in zip(signature.args, given, strict=True)))
            return context.get_dummy_value() if made is None else made

        @wraps(generate)  # numba looks at its arguments
        def declare(_: Any, *found: Any) -> Any:
            return result(*(kind or one for kind, one in zip(kinds, found, strict=True))), emit

        return intrinsic(prefer_literal=True)(declare)

    return wrap


@_operation(types.void, _ANY, types.intp, types.intp, _ANY, types.intp, _ANY, _ANY)
def transform_columns(
    builder: Builder, source: Pointer, at: Value, stride: Value, target: Pointer, place: Value, edge: int, form: int
) -> None:
    """The DCT or its inverse of 16 columns of `edge` rows, written as 16 rows, one after the other.

    Both arrays are flat: row r begins at `at + r * stride`, and in the target the first row at `place`.
    """
    starts = [builder.add(at, builder.mul(stride, _INDEX(row))) for row in range(edge)]
    rows = [_load(builder, source, _FLOATS, start) for start in starts]
    forward, backward, _ = make_programs(edge)
    rows = _run(builder, backward if form == INVERSE else forward, rows, is_inverse=form == INVERSE)
    for first in range(0, edge, LANES):
        for number, row in enumerate(_turn(builder, rows[first : first + LANES])):
            _store(builder, target, row, builder.add(place, _INDEX(number * edge + first)))


@_operation(types.int64, _ANY, types.intp, types.int32)
def match(builder: Builder, row: Pointer, at: Value, least: Value) -> Value:
    """Which of 64 numbers from `at` on are finite and have at least this key: bit i of the result is for the i-th."""
    keys = _get_keys(builder, _load(builder, row, ir.VectorType(ir.FloatType(), WORD), at))
    return builder.bitcast(builder.icmp_signed(">=", keys, _spread(builder, least, keys.type)), _INDEX)


@_operation(types.void, _ANY, types.intp, types.int64, _ANY, _ANY, types.intp)
def keep_lanes(
    builder: Builder, row: Pointer, at: Value, found: Value, places: Pointer, values: Pointer, size: Value
) -> None:
    """Append those of 16 numbers whose (lowest) bits are set, and where they are; 16 places are written."""
    mask: Value = builder.bitcast(builder.trunc(found, ir.IntType(LANES)), _MASK)
    first = _spread(builder, builder.trunc(at, _INT), _INTS)
    _store(builder, places, _compress(builder, builder.add(first, _COUNT), mask), size)
    _store(builder, values, _compress(builder, _load(builder, row, _FLOATS, at), mask), size)


@_operation(types.int64, types.int64, types.int64, _ANY, types.intp)
def keep_marks(builder: Builder, marks: Value, first: Value, places: Pointer, size: Value) -> Value:
    """Append where bits of a word are set, from `first` on; how many there are then. 16 places more may be written."""
    for part in range(0, WORD, LANES):
        found = builder.lshr(marks, _INDEX(part))
        mask: Value = builder.bitcast(builder.trunc(found, ir.IntType(LANES)), _MASK)
        start = _spread(builder, builder.trunc(builder.add(first, _INDEX(part)), _INT), _INTS)
        _store(builder, places, _compress(builder, builder.add(start, _COUNT), mask), size)
        size = builder.add(size, builder.ctpop(builder.and_(found, _INDEX((1 << LANES) - 1))))
    return size


@_operation(types.void, _ANY, types.int64, types.int64, _ANY, types.intp)
def put_lows(builder: Builder, words: Pointer, at: Value, bits: Value, places: Pointer, entry: Value) -> None:
    """Of marks from `entry` on, 16 of them, make positions: less their numbers, then as many bits below, from `at` on.

    There are 0 to 14 bits for each.
    """
    kind, parts = ir.VectorType(_INDEX, _GROUP), []
    shifts = builder.mul(_spread(builder, bits, kind), kind(list(range(_GROUP))))
    for part in range(0, LANES, _GROUP):
        begin = builder.add(at, builder.mul(bits, builder.add(entry, _INDEX(part))))
        parts.append(builder.lshr(_spread(builder, _load_bits(builder, words, begin), kind), shifts))
    while len(parts) > 1:
        lanes = 2 * LANES // len(parts)
        order = ir.VectorType(_INT, lanes)(list(range(lanes)))
        parts = [builder.shuffle_vector(*two, order) for two in zip(parts[::2], parts[1::2], strict=True)]
    one, short = _spread(builder, _INT(1), _INTS), _spread(builder, builder.trunc(bits, _INT), _INTS)
    lows = builder.and_(builder.trunc(parts[0], _INTS), builder.sub(builder.shl(one, short), one))
    numbers = builder.add(_spread(builder, builder.trunc(entry, _INT), _INTS), _COUNT)
    marks = builder.sub(_load(builder, places, _INTS, entry), numbers)
    _store(builder, places, builder.or_(builder.shl(marks, short), lows), entry)


@_operation(types.int64, _ANY, types.intp, _ANY, types.intp, types.float32, types.float32)
def move_lanes(
    builder: Builder, weights: Pointer, at: Value, waves: Pointer, place: Value, bound: Value, lr: Value
) -> Value:
    """Move 16 weights by -lr times the sign of a wave that is further than `bound` from 0; which (bits) it is not."""
    wave, most, step = _load(builder, waves, _FLOATS, place), *(_spread(builder, x, _FLOATS) for x in (bound, lr))
    is_up = builder.fcmp_ordered(">", wave, most)
    is_down = builder.fcmp_ordered("<", wave, builder.fneg(most))
    steps = builder.select(is_up, step, builder.select(is_down, builder.fneg(step), _FLOATS([0.0] * LANES)))
    _store(builder, weights, builder.fsub(_load(builder, weights, _FLOATS, at), steps), at)
    is_still = builder.not_(builder.or_(is_up, is_down))
    return builder.zext(builder.bitcast(is_still, ir.IntType(LANES)), _INDEX)


@_operation(types.void, _ANY, types.intp, _ANY, types.intp, types.float64)
def subtract_sums(builder: Builder, weights: Pointer, at: Value, sums: Pointer, place: Value, rate: Value) -> None:
    """Take 16 sums times `rate`, rounded to float32, from weights; the sums are zero then."""
    moves = builder.fmul(_load(builder, sums, _DOUBLES, place), _spread(builder, rate, _DOUBLES))
    moves = builder.fptrunc(builder.fadd(moves, _DOUBLES([0.0] * LANES)), _FLOATS)  # -0 would change a weight of -0
    _store(builder, weights, builder.fsub(_load(builder, weights, _FLOATS, at), moves), at)
    _store(builder, sums, _DOUBLES([0.0] * LANES), place)


@_operation(types.void, _ANY, types.intp)
def prefetch(builder: Builder, numbers: Pointer, at: Value) -> None:
    """Let the processor bring 16 numbers from memory while it does something else; `at` may lie behind the end."""
    _prefetch(builder, builder.bitcast(builder.gep(numbers, [at]), ir.IntType(8).as_pointer()))


@_operation(types.void, types.int64, types.int64)
def prefetch_bytes(builder: Builder, address: Value, at: Value) -> None:
    """The same of 64 bytes, of an array of which only the address is known."""
    _prefetch(builder, builder.inttoptr(builder.add(address, at), ir.IntType(8).as_pointer()))


def _prefetch(builder: Builder, pointer: Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _INT, _INT, _INT])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [pointer, _INT(0), _INT(3), _INT(1)])  # to read, into the nearest cache, data


@_operation(types.int32, types.int64, types.intp)
def read_int32(builder: Builder, address: Value, at: Value) -> Value:
    """A number of an array of which only the address is known: loops can be given any number of such arrays."""
    return builder.load(builder.gep(builder.inttoptr(address, _INT.as_pointer()), [at]), align=4)


@_operation(types.int8, types.int64, types.intp)
def read_int8(builder: Builder, address: Value, at: Value) -> Value:
    return builder.load(builder.gep(builder.inttoptr(address, ir.IntType(8).as_pointer()), [at]), align=1)


@_operation(types.void, types.int64, types.int64, _ANY, types.intp)
def put_values(builder: Builder, signs: Value, levels: Value, values: Pointer, at: Value) -> None:
    """64 values by a bit of each word: 1, or HIGH_LEVEL where the level is set, and negative where the sign is."""
    kind, mask = ir.VectorType(ir.IntType(8), WORD), ir.VectorType(ir.IntType(1), WORD)
    low, high = (kind([number] * WORD) for number in (1, HIGH_LEVEL))
    size = builder.select(builder.bitcast(levels, mask), high, low)
    value = builder.select(builder.bitcast(signs, mask), builder.sub(kind([0] * WORD), size), size)
    builder.store(value, builder.bitcast(builder.gep(values, [at]), kind.as_pointer()), align=1)


@_operation(types.int64, types.float64)
def view_bits(builder: Builder, number: Value) -> Value:
    return builder.bitcast(number, _INDEX)


@_operation(types.int64, types.int64)
def count_zeros(builder: Builder, word: Value) -> Value:
    """The zero bits below the lowest bit that is set, of a word that is not 0."""
    return builder.cttz(word, ir.IntType(1)(1))


@_operation(types.int64, types.int64)
def count_ones(builder: Builder, word: Value) -> Value:
    return builder.ctpop(word)


@_operation(types.int64, _ANY, types.int64)
def get_bits(builder: Builder, words: Pointer, at: Value) -> Value:
    """The bits from bit `at` of an array of words on: at least 57."""
    return _load_bits(builder, words, at)


def _load_bits(builder: Builder, words: Pointer, at: Value) -> Value:
    data = builder.bitcast(words, ir.IntType(8).as_pointer())
    place = builder.gep(data, [builder.lshr(at, _INDEX(3))])
    word = builder.load(builder.bitcast(place, _INDEX.as_pointer()), align=1)
    return builder.lshr(word, builder.and_(at, _INDEX(7)))


def _compress(builder: Builder, numbers: Value, mask: Value) -> Value:
    """Those of 16 numbers that are in a mask, one after the other, and anything behind them."""
    kind = ir.FunctionType(numbers.type, [numbers.type, mask.type, numbers.type])
    name = f"llvm.experimental.vector.compress.v{LANES}{'i32' if numbers.type == _INTS else 'f32'}"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [numbers, mask, numbers])


def _load(builder: Builder, data: Pointer, kind: ir.Type, at: Value) -> Value:
    return builder.load(builder.bitcast(builder.gep(data, [at]), kind.as_pointer()), align=4)


def _store(builder: Builder, data: Pointer, value: Value, at: Value) -> None:
    builder.store(value, builder.bitcast(builder.gep(data, [at]), value.type.as_pointer()), align=4)


def _spread(builder: Builder, number: Value, kind: ir.VectorType) -> Value:
    nothing = kind(ir.Undefined)
    zeros = ir.VectorType(_INT, kind.count)([0] * kind.count)
    return builder.shuffle_vector(builder.insert_element(nothing, number, _INT(0)), nothing, zeros)


def _get_keys(builder: Builder, values: Value) -> Value:
    """Magnitudes by their bits, which have the same order; 0 for infinite ones and NaN."""
    kind = ir.VectorType(_INT, values.type.count)
    limit, mask, zero = (kind([number] * kind.count) for number in (INFINITY, 0x7FFFFFFF, 0))
    bits = builder.and_(builder.bitcast(values, kind), mask)
    return builder.select(builder.icmp_signed("<", bits, limit), bits, zero)


def _scale(builder: Builder, row: Value, factor: float) -> Value:
    return builder.fmul(row, _FLOATS([factor] * LANES))


def _add_product(builder: Builder, row: Value, factor: float, more: Value) -> Value:
    """row * factor + more, which a processor that can rounds once: a transform is known to its rounding only."""
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
    return builder.call(function, [row, _FLOATS([factor] * LANES), more])


def _run(builder: Builder, program: Program, rows: Sequence[Value], *, is_inverse: bool) -> list[Value]:
    """Let a program mix rows, which are frequencies before it (of the inverse) or after it."""
    scales = program.scales.tolist()
    mixed = list(rows)
    if is_inverse:
        for place, row, scale in zip(program.places, rows, scales, strict=True):
            mixed[place] = _scale(builder, row, scale)
    for (p, q), (a, b, c, d) in zip(program.rows.tolist(), program.coefficients.tolist(), strict=True):
        first, second = mixed[p], mixed[q]
        if p == q:
            mixed[p] = _scale(builder, first, a)
        elif (a, b, c, d) == (1.0, 1.0, 1.0, -1.0):
            mixed[p], mixed[q] = builder.fadd(first, second), builder.fsub(first, second)
        else:
            mixed[p] = _add_product(builder, first, a, _scale(builder, second, b))
            mixed[q] = _add_product(builder, first, c, _scale(builder, second, d))
    if is_inverse:
        return mixed
    return [_scale(builder, mixed[place], scale) for place, scale in zip(program.places, scales, strict=True)]


def _turn(builder: Builder, rows: Sequence[Value]) -> list[Value]:
    """16 rows as columns: blocks of a half, a quarter and so on change places."""
    turned = list(rows)
    for half in (8, 4, 2, 1):
        for row in range(LANES):
            if row & half == 0:
                upper, lower = turned[row], turned[row + half]
                for number, shift in ((row, 0), (row + half, half)):
                    lanes = [(lane & ~half) + shift + (LANES if lane & half else 0) for lane in range(LANES)]
                    turned[number] = builder.shuffle_vector(upper, lower, _INTS(lanes))
    return turned
