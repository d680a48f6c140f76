"""Value numbering: what is computed once, what is not, and what a branch may not see."""

from tvm import tirx

from mlc_compile.emit.spirv.opcodes import Op

from .reading import Code
from .writing import F32, I32, const, kernel, load, store

XY = {"x": F32, "y": F32}


def shader(emit, body, buffers=None):
    return Code(emit(kernel(body, buffers or XY)).code)


def test_equal_expressions_are_computed_once(emit):
    def body(n):
        def place():
            return tirx.Mul(tirx.Add(n.thread, const(I32, 1)), const(I32, 2))

        return [store(n.y, load(n.x, place()), place())]

    code = shader(emit, body)
    assert (code.count(Op.IAdd), code.count(Op.IMul)) == (1, 1)


def test_loads_are_made_each_time_since_a_store_may_be_between(emit):
    def body(n):
        x = load(n.y, n.thread)
        twice = tirx.Add(x, x)
        return [store(n.y, twice, n.thread), store(n.y, twice, n.thread)]

    assert shader(emit, body, {"y": F32}).count(Op.Load) == 5  # and the thread's place


def test_a_branch_keeps_its_values_to_itself(emit):
    def body(n):
        half = tirx.Div(n.thread, const(I32, 2))
        inside = store(n.y, load(n.x, half), half)
        return [
            tirx.IfThenElse(n.thread < 3, inside, inside),
            store(n.y, load(n.x, half), half),
        ]

    assert shader(emit, body).count(Op.SDiv) == 3


def test_what_was_computed_before_a_branch_is_known_in_it(emit):
    def body(n):
        half = tirx.Div(n.thread, const(I32, 2))
        inside = store(n.y, load(n.x, half), half)
        return [inside, tirx.IfThenElse(n.thread < 3, inside, None), inside]

    assert shader(emit, body).count(Op.SDiv) == 1


def test_a_variable_that_is_bound_again_makes_expressions_stale(emit):
    def body(n):
        i = tirx.Var("i", I32)
        double = tirx.Mul(i, const(I32, 2))  # one node, two values
        put = store(n.y, load(n.x, double), double)
        return [tirx.Bind(i, n.thread), put, tirx.Bind(i, const(I32, 7)), put]

    assert shader(emit, body).count(Op.IMul) == 2


def test_lanes_of_what_was_joined_are_not_extracted(emit):
    def body(n):
        ramp = tirx.Ramp(n.thread, const(I32, 3), 4)
        last = tirx.Shuffle([ramp], [const(I32, 3)])
        return [store(n.y, load(n.x, last), n.thread)]

    code = shader(emit, body)
    assert code.count(Op.CompositeExtract) == 1  # the thread's place of three


def test_constant_vectors_are_constants(emit):
    def body(n):
        two = tirx.Broadcast(const(F32, 2), 4)
        at = n.thread * 4
        return [store(n.y, tirx.Mul(load(n.x, at, 4), two), at, 4)]

    code = shader(emit, body)
    assert code.count(Op.ConstantComposite) == 1
    assert code.count(Op.CompositeConstruct) == 0
