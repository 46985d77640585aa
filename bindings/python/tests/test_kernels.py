"""Kernels, in one process: what they can do, and what they are refused."""

import math
import os
import platform
import subprocess
import sys
import threading
import unittest
from unittest import mock

import numba
import numpy as np
import samite
from samite import _compiler, _target, kernel

FACTOR = 3

#: A module with an entry that replies with its payload, and one that does not end.
MODULE = (
    '(module (import "samite" "memory" (memory 1))'
    ' (import "samite" "reply" (func $reply (param i32 i32)))'
    ' (func (export "echo") (param i32 i32) (result i32)'
    "  (call $reply (local.get 0) (local.get 1)) (i32.const 0))"
    ' (func (export "endless") (param i32 i32) (result i32)'
    "  (loop (br 0)) (i32.const 0)))"
)
#: A capsule whose only part is the name of functions: entry, kind and processor, length, name.
OF_FUNCTIONS = (
    b"samitec1" + b"\x01\x05count" + b"\x01\0\0\0\0" + b"\x05\0\0\0" + b"stats"
)
#: A capsule with an entry `echo`, signed by `SIGNER`.
SIGNED = bytes.fromhex(
    "73616d697465633101046563686f0101000000660000000061736d01000000010c0260027f7f0060027f7f01"
    "7f0221020673616d697465066d656d6f72790200010673616d697465057265706c7900000302010107080104"
    "6563686f00010a0c010a0020002001100041000b000f046e616d6501080100057265706c7973616d69746573"
    "313ee2a8a7283cb2fd728943daa127ef09e483071a8b4bc699ba4522f09b14cfde9304e2a63a6c00f491505a"
    "be6f17a27e687b6dafdaa7018cd05cddaf4865d8ca6ec65147639f9ff57d4176be442a2712a304df5e6c0fe6"
    "0137614e842f861801"
)
SIGNER = "3ee2a8a7283cb2fd728943daa127ef09e483071a8b4bc699ba4522f09b14cfde"


class Kernels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fabric = samite.alone("kernels")
        cls.mobile = samite.Mobile(cls.fabric)
        cls.large = cls.fabric.allocate(2 << 20)
        cls.small = cls.fabric.allocate(4096)
        cls.mobile.grant(0, cls.large, "read")
        cls.mobile.grant(1, cls.small, "write")
        cls.odd = cls.fabric.allocate(1000)
        cls.mobile.grant(3, cls.odd, "read")

    def setUp(self):
        self.large.array(np.float64)[:] = 0
        self.small.array(np.int64)[:] = 0

    def run_here(self, what, payload=None, **limits):
        return self.mobile.call(0, what, payload, **limits).result()

    def failure(self, what, payload=None, **limits):
        with self.assertRaises(samite.Error) as caught:
            self.run_here(what, payload, **limits)
        self.assertEqual((caught.exception.code, caught.exception.path), (608, [0]))
        return caught.exception

    def test_the_payload_is_an_array(self):
        @samite.mobile
        def total(values):
            return values.sum()

        self.assertEqual(self.run_here(total, np.arange(100.0)), 4950.0)
        self.assertEqual(self.run_here(total, np.arange(100, dtype=np.int32)), 4950)
        self.assertEqual(self.run_here(total, [1, 2, 3]), 6)
        self.assertEqual(self.run_here(total, 5), 5)
        self.assertEqual(self.run_here(total, b"\x01\x02\xff"), 258)
        self.assertEqual(self.run_here(total, np.arange(10.0)[::3]), 18.0)
        self.assertEqual(self.run_here(total), 0)
        self.assertEqual(total(np.arange(4)), 6)  # the function itself

    def test_the_elements_have_the_type_that_is_given(self):
        pair = np.dtype([("low", "i4"), ("high", "f8")])

        @samite.mobile(pair)
        def width(ranges):
            return ranges[0].high - ranges[0].low + ranges.shape[0]

        ranges = np.array([(1, 3.5), (0, 0.0)], pair)
        self.assertEqual(self.run_here(width, ranges), 4.5)
        # A list of tuples is such an array, and a tuple is one element.
        self.assertEqual(self.run_here(width, [(1, 3.5), (0, 0.0)]), 4.5)
        self.assertEqual(self.run_here(width, (1, 3.5)), 3.5)
        swapped = np.array([(3.5, 1)], [("high", "f8"), ("low", "i4")])
        wrong = ([[1, 3.5], [0, 0.0]], [(1.5, 3.5)], [(1, 2, 3)], [((1, 2), 3)], [1], swapped)
        for refused in wrong:
            with self.assertRaises(TypeError, msg=refused):
                self.run_here(width, refused)
        with self.assertRaises(OverflowError):
            self.run_here(width, [(1 << 40, 3.5)])

        @samite.mobile([("at", pair), ("weights", "f4", 2)])
        def nested(values):
            return values[0].at.high

        self.assertEqual(self.run_here(nested, [((1, 2.5), (0.5, 0.25))]), 2.5)
        with self.assertRaises(TypeError):
            self.run_here(nested, [((1, 2.5), 0.5)])

        @samite.mobile(dtype=np.uint8)
        def first(values):
            return values[0]

        self.assertEqual(self.run_here(first, [200]), 200)
        with self.assertRaises(OverflowError):
            self.run_here(first, [256])
        with self.assertRaises(OverflowError):
            self.run_here(first, [-1])
        for not_converted in ([1.5], [1j], ranges):
            with self.assertRaises(TypeError):
                self.run_here(first, not_converted)
        real = samite.mobile(np.float64)(lambda values: values[0])
        with self.assertRaises(TypeError):
            self.run_here(real, [1j])
        with self.assertRaises(OverflowError):
            self.run_here(real, [2**53 + 1])
        with self.assertRaises(ValueError):
            self.run_here(width, b"123")

    def test_what_is_no_number_is_no_payload(self):
        plain = samite.mobile(lambda values: values[0])
        typed = samite.mobile(np.float64)(lambda values: values[0])
        for kernel_of in (plain, typed):
            for wrong in ("7", ["7"], {"a": 1}, [None], object(), np.array(["2026"], "M8[Y]")):
                with self.assertRaisesRegex(TypeError, "a payload is an array", msg=wrong):
                    self.mobile.call(0, kernel_of, wrong)
        with self.assertRaisesRegex(TypeError, "no type of NumPy"):
            self.mobile.call(0, plain, [2**70])

    def test_types_of_python_are_types_of_elements(self):
        self.large.array(np.float64)[:3] = (1.5, 2.5, 3.5)

        @samite.mobile
        def read():
            whole = kernel.buffer(2, int)
            whole[0] = 1 << 40
            flags = kernel.buffer(1, bool)
            return kernel.segment(0, float)[:3].sum(), whole[0], flags[0]

        self.assertEqual(self.run_here(read), (7.5, 1 << 40, False))

    def test_results(self):
        @samite.mobile
        def of_several_types(values):
            return values[0], values.max(), values.shape[0], values[0] > 2.0

        self.assertEqual(self.run_here(of_several_types, [2.5, 7.0]), (2.5, 7.0, 2, True))

        @samite.mobile
        def doubled(values):
            values *= 2
            return values[1:]

        result = self.run_here(doubled, np.arange(4, dtype=np.int16))
        self.assertEqual((result.tolist(), result.dtype), ([2, 4, 6], np.int16))

        @samite.mobile
        def nothing():
            pass

        self.assertEqual(self.run_here(nothing), b"")

        @samite.mobile
        def complex_number(values):
            return values[0] * 1j

        self.assertEqual(self.run_here(complex_number, [2.0]), 2j)

    def test_a_kernel_calls_functions_and_uses_constants(self):
        @numba.njit
        def squared(value):
            return value * value

        @samite.mobile
        def norm(values):
            total = 0.0
            for value in values:
                total += squared(value)
            return math.sqrt(total) * FACTOR

        self.assertEqual(self.run_here(norm, [3.0, 4.0]), 15.0)
        self.assertEqual(self.run_here(samite.mobile(numba.njit(norm._function)), [3.0, 4.0]), 15.0)

    def test_a_kernel_may_have_the_name_of_a_function_of_a_library(self):
        @samite.mobile
        def floor(values):
            return math.floor(values[0])

        @samite.mobile
        def main(values):
            return values[0]

        self.assertEqual(self.run_here(floor, [2.5]), 2)
        self.assertEqual(self.run_here(main, [2.5]), 2.5)

    def test_where_it_runs(self):
        @samite.mobile
        def place():
            return kernel.me(), kernel.units(), kernel.origin(), kernel.hops()

        self.assertEqual(self.run_here(place, hops=9), (0, 1, 0, 9))

    def test_a_segment_is_an_array(self):
        self.large.array(np.float64)[1000:1100] = 0.5

        @samite.mobile
        def total():
            return kernel.segment(0, np.float64).sum(), kernel.length(0)

        self.assertEqual(self.run_here(total), (50.0, 2 << 20))

        @samite.mobile
        def part():
            kernel.reply(kernel.segment(0, np.float64)[998:1002])

        self.assertEqual(np.frombuffer(self.run_here(part)).tolist(), [0, 0, 0.5, 0.5])

        @samite.mobile
        def copied(values):
            data = kernel.segment(0, np.float64)
            for at in range(values.shape[0]):
                values[at] = data[at + 999]
            return values

        self.assertEqual(self.run_here(copied, np.zeros(99)).sum(), 49.0)

        @samite.mobile
        def store():
            kernel.segment(0, np.float64)[0] = 1.0

        self.assertEqual(self.failure(store).cause, "Memory")
        self.mobile.grant(2, self.large, "write")

        @samite.mobile
        def fill(values):
            kernel.segment(2, np.float64)[:] = values[0]

        self.run_here(fill, 0.25)
        self.mobile.revoke(2)
        self.assertEqual(self.large.array(np.float64).sum(), (2 << 20) / 8 / 4)

    def test_words_of_a_segment(self):
        @samite.mobile
        def words():
            kernel.store64(1, 8, 40)
            before = kernel.add64(1, 8, 2)
            swapped = kernel.cas64(1, 8, 42, -5)
            kept = kernel.cas64(1, 8, 42, 6)
            return before, swapped, kept, kernel.load64(1, 8)

        self.assertEqual(self.run_here(words), (40, 42, -5, -5))
        self.assertEqual(self.small.array(np.int64)[1], -5)

    def test_a_buffer_for_copies(self):
        self.small.array(np.int32)[:8] = np.arange(8)

        @samite.mobile
        def moved():
            numbers = kernel.buffer(8, np.int32)
            numbers[:] = numbers + 1

        with self.assertRaisesRegex(samite.CompileError, "allocates memory"):
            self.run_here(moved)

        @samite.mobile
        def added():
            numbers = kernel.buffer(8, np.int32)
            kernel.copy_in(1, 0, numbers)
            for at in range(8):
                numbers[at] += 1
            kernel.copy_out(1, 64, numbers)
            kernel.reply(numbers[2:4])

        self.assertEqual(np.frombuffer(self.run_here(added), np.int32).tolist(), [3, 4])
        self.assertEqual(self.small.array(np.int32)[16:24].tolist(), list(range(1, 9)))

    def test_a_buffer_is_made_once_and_by_the_kernel(self):
        @samite.mobile
        def looped():
            total = 0
            for at in range(3):
                numbers = kernel.buffer(8, np.int64)
                numbers[0] = at
                total += numbers[0]
            return total

        self.assertIn("twice at the same place", str(self.failure(looped)))

        @numba.njit
        def made():
            return kernel.buffer(8, np.int64)

        @samite.mobile
        def passed_on():
            return made()[0]

        with self.assertRaisesRegex(samite.CompileError, "in the kernel itself"):
            self.run_here(passed_on)

        @samite.mobile
        def flags():
            flags = kernel.buffer(3, np.bool_)
            flags[1] = True
            return flags[0], flags[1]

        self.assertEqual(self.run_here(flags), (False, True))

    def test_the_stack_has_room_for_buffers(self):
        @samite.mobile
        def many(values):
            total = 0
            a = kernel.buffer(65536, np.uint8)
            b = kernel.buffer(65536, np.uint8)
            c = kernel.buffer(65536, np.uint8)
            d = kernel.buffer(65536, np.uint8)
            e = kernel.buffer(65536, np.uint8)
            for at in range(65536):
                a[at] = b[at] = c[at] = d[at] = e[at] = values[0]
            for at in range(65536):
                total += a[at] + b[at] + c[at] + d[at] + e[65535 - at]
            return total

        self.assertEqual(self.run_here(many, [2]), 5 * 65536 * 2)
        with mock.patch.object(_target, "_BUFFERS_MAX", 4 * 65536):
            with self.assertRaisesRegex(samite.CompileError, "bytes for its buffers"):
                many.compile(np.int32)

    def test_an_index_is_checked(self):
        @samite.mobile
        def beyond(values):
            values[values[0]] = 7
            return values[-1]

        self.assertEqual(self.run_here(beyond, [1, 0]), 7)
        self.assertIn("out of bounds", str(self.failure(beyond, [2, 0])))
        self.assertIn("out of bounds", str(self.failure(beyond, [1 << 40, 0])))

    def test_failures(self):
        @samite.mobile
        def fails(values):
            if values[0] == 1:
                kernel.fail(77, "the reason")
                return
            if values[0] == 2:
                raise ValueError("not two")
            kernel.load64(values[0], 8 * values[1])

        failure = self.failure(fails, [1, 0])
        self.assertEqual(failure.cause, "Failed")
        self.assertIn("77", str(failure))
        self.assertIn("the reason", str(failure))
        failure = self.failure(fails, [2, 0])
        self.assertIn("ValueError: not two", str(failure))
        self.assertNotIn(__file__, str(failure))
        self.assertEqual(self.failure(fails, [9, 0]).cause, "Grant")
        self.assertEqual(self.failure(fails, [1 << 20, 0]).cause, "Grant")
        self.assertEqual(self.failure(fails, [1 << 32, 0]).cause, "Grant")
        failure = self.failure(fails, [0, 1 << 20])
        self.assertEqual(failure.cause, "Grant")
        self.assertIn("a call failed at kernels.0", str(failure))

        @samite.mobile
        def unmapped():
            return kernel.segment(3, np.float64).sum()

        self.assertIn("has no address", str(self.failure(unmapped)))

        @samite.mobile
        def word():
            return kernel.load64(0, 0) + kernel.load64(1, 0)

        @samite.mobile
        def endless(values):
            while values[0] >= 0:
                values[0] += 1
                if values[0] > 1000:
                    values[0] = 0
            return values[0]

        self.assertEqual(self.failure(endless, [0], run=0.02).cause, "Time")
        self.assertEqual(self.failure(fails, [0, 0], grants=[1]).cause, "Grant")
        self.assertEqual(self.run_here(word, grants=[0, 0, 1, 1]), 0)

        @samite.mobile
        def away(units):
            kernel.forward(units[0], units)

        self.assertEqual(self.failure(away, [5]).cause, "Target")
        self.assertEqual(self.failure(away, [1 << 32]).cause, "Target")
        self.assertEqual(self.failure(away, [0], hops=0).cause, "Forbidden")

    def test_it_moves_and_spawns(self):
        @samite.mobile(np.int64)
        def countdown(values):
            kernel.add64(1, 0, 1)
            if values[0] > 0:
                kernel.forward(kernel.me(), values[0] - 1)
                return
            kernel.reply((kernel.hops(), 0.5, True))

        reply = self.run_here(countdown, 10, hops=100)
        self.assertEqual(len(reply), 17)
        self.assertEqual(np.frombuffer(reply[:8], np.int64)[0], 90)
        self.assertEqual(self.small.array(np.int64)[0], 11)

        @samite.mobile(np.int64)
        def spread(values):
            kernel.add64(1, 8, 1)
            if values[0] > 0:
                kernel.spawn(0, values[0] - 1)
                kernel.spawn(0, values[0] - 1)

        self.run_here(spread, 3)
        while self.small.array(np.int64)[1] < 15:
            self.fabric.progress()
        self.assertEqual(self.small.array(np.int64)[1], 15)

    def test_it_moves_with_elements_of_its_own_type(self):
        @samite.mobile(np.int32)
        def narrow(values):
            kernel.forward(kernel.me(), values[0] - 1)

        with self.assertRaisesRegex(samite.CompileError, "elements of int32, .* of int64"):
            self.run_here(narrow, [1])

        @samite.mobile(np.float64)
        def place(values):
            kernel.forward(kernel.me(), kernel.me())

        with self.assertRaisesRegex(samite.CompileError, "elements of float64, .* of int64"):
            self.run_here(place, [1])

        @samite.mobile(np.float64)
        def spread(values):
            kernel.spawn(kernel.me(), (values[0], kernel.me()))

        with self.assertRaisesRegex(samite.CompileError, "elements of float64, .* of int64"):
            self.run_here(spread, [1])

        @samite.mobile(np.float64)
        def buffered(values):
            kernel.forward(kernel.me(), kernel.buffer(2, np.int64))

        with self.assertRaisesRegex(samite.CompileError, "elements of float64, .* of int64"):
            self.run_here(buffered, [1])

        @samite.mobile(np.int32)
        def converted(values):
            if values[0] > 0:
                kernel.forward(kernel.me(), np.int32(values[0] - 1))
                return
            kernel.reply(values)

        self.assertEqual(np.frombuffer(self.run_here(converted, [3]), np.int32).tolist(), [0])

        @samite.mobile
        def raw(values):
            if values.shape[0] == 1:
                kernel.forward(kernel.me(), (kernel.me(), 0.5))
                return
            kernel.reply(values)

        self.assertEqual(np.frombuffer(self.run_here(raw, b"1")).tolist(), [0, 0.5])

    def test_futures(self):
        @samite.mobile
        def echo(values):
            return values

        calls = [self.mobile.call(0, echo, [at]) for at in range(50)]
        self.assertEqual([int(call.result()[0]) for call in calls], list(range(50)))
        self.assertTrue(calls[0].done())
        self.assertEqual(calls[0].result().tolist(), [0])
        self.mobile.send(0, echo, [1])
        self.mobile.prefetch(echo, [0], dtype=np.int64).result()
        counted = self.mobile.counters()
        self.assertGreaterEqual(counted["calls"], 50)
        with self.assertRaises(samite.Error) as caught:
            self.mobile.call(1, echo, [1])
        self.assertEqual((caught.exception.code, caught.exception.name), (602, "mobile.NoUnit"))
        with self.assertRaises(samite.Error) as caught:
            self.mobile.call(0, echo, np.zeros(70000, np.uint8))
        self.assertEqual(caught.exception.code, 607)
        with self.assertRaises(samite.Error) as caught:
            samite.Mobile(self.fabric)
        self.assertEqual(caught.exception.code, 601)
        self.assertIn("use the `Mobile` that it has", str(caught.exception))

    def test_code_that_was_evicted_is_registered_again(self):
        @samite.mobile
        def first(values):
            return values[0]

        self.assertEqual(self.run_here(first, [3]), 3)
        code = self.mobile.register(first.compile(np.int64))
        self.assertTrue(self.mobile.evict(code))
        self.assertFalse(self.mobile.evict(code))
        self.assertEqual(self.run_here(first, [4]), 4)
        # The kernel with its forms, or one of them.
        self.assertEqual(self.run_here(first, [4.5]), 4.5)
        compiled = self.mobile.counters()["compiled"]
        self.assertTrue(self.mobile.evict(first.compile(np.int64)))
        self.assertEqual(self.run_here(first, [5]), 5)
        self.assertEqual(self.mobile.counters()["compiled"], compiled + 1)
        self.assertTrue(self.mobile.evict(first))
        self.assertFalse(self.mobile.evict(first))
        self.assertEqual((self.run_here(first, [6]), self.run_here(first, [6.5])), (6, 6.5))
        self.assertEqual(self.mobile.counters()["compiled"], compiled + 3)

    def test_code_is_called_in_place_of_its_capsule(self):
        # No other test has this code.
        capsule = samite.Capsule.from_wat(MODULE.replace("endless", "other"))
        code = self.mobile.register(capsule)
        self.assertEqual((code.hash, bytes(code.capsule)), (capsule.hash, bytes(capsule)))
        compiled = self.mobile.counters()["compiled"]
        self.mobile.prefetch(code, [0]).result()
        self.assertEqual(self.mobile.counters()["compiled"], compiled + 1)
        self.assertEqual(self.run_here(code, b"woven"), b"woven")
        self.mobile.send(0, code, b"woven", entry="echo")
        # One name for all of them: whatever has registered it, it is forgotten once.
        for what in (capsule, code):
            self.assertTrue(self.mobile.evict(what))
            self.assertFalse(self.mobile.evict(capsule))
            self.assertFalse(self.mobile.evict(code))
            self.assertEqual(self.run_here(code, b"again"), b"again")
        self.assertEqual(self.mobile.counters()["compiled"], compiled + 3)
        for refuses in (self.mobile.evict, lambda what: self.mobile.prefetch(what, [0])):
            with self.assertRaisesRegex(TypeError, "nor a Capsule nor a Code"):
                refuses(b"bytes")

    def test_failures_for_which_nobody_waits(self):
        @samite.mobile
        def fails():
            kernel.load64(9, 0)

        self.mobile.take_failures()
        before = self.mobile.counters()["unwaited_failures"]
        self.mobile.send(0, fails)
        while self.mobile.counters()["unwaited_failures"] == before:
            self.fabric.progress()
        (failure,) = self.mobile.take_failures()
        self.assertIsInstance(failure, samite.Error)
        said = (failure.code, failure.name, failure.cause, failure.path)
        self.assertEqual(said, (608, "mobile.Failed", "Grant", [0]))
        self.assertIn("grant 9", str(failure))
        self.assertEqual(self.mobile.take_failures(), [])
        self.assertEqual(self.mobile.counters()["unwaited_failures"], before + 1)

    def test_messages_name_what_python_has(self):
        capsule = samite.Capsule.from_wat(MODULE)
        for _ in range(8):
            failure = self.failure(capsule, entry="endless", run=0.02)
            self.assertEqual(failure.cause, "Time")
            self.assertNotIn("::", str(failure))
        failure = self.failure(capsule, entry="endless", run=0.02)
        self.assertEqual(failure.cause, "Refused")
        self.assertIn("(`run` and `time` of `Mobile.call`; this unit", str(failure))
        self.assertIn("(`Mobile.evict`)", str(failure))
        self.assertTrue(self.mobile.evict(capsule))
        self.assertEqual(self.failure(capsule, entry="endless", run=0.02).cause, "Time")
        of_functions = samite.Capsule.decode(OF_FUNCTIONS)
        self.assertIn(
            "`stats` (only a program in Rust defines functions)", str(self.failure(of_functions))
        )

    def test_several_threads_wait_for_a_call(self):
        @samite.mobile
        def echo(values):
            return values[0]

        call = self.mobile.call(0, echo, [7])
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(call.result())) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [7] * 4)
        self.assertTrue(call.done())

    def test_a_fork_has_no_mobile(self):
        process = os.fork()
        if process == 0:
            try:
                self.mobile.revoke(9)
            except RuntimeError:
                os._exit(7)
            finally:
                os._exit(1)
        _, status = os.waitpid(process, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 7)

    def test_capsules(self):
        capsule = samite.Capsule.from_wat(MODULE)
        self.assertEqual((capsule.entries, len(capsule.hash)), (["echo", "endless"], 64))
        again = samite.Capsule.decode(bytes(capsule))
        self.assertEqual(again.hash, capsule.hash)
        self.assertEqual(self.run_here(again, b"woven", entry="echo"), b"woven")
        self.assertEqual(self.run_here(again, np.array([1, 2])), bytes(np.array([1, 2])))
        self.assertEqual(self.run_here(again), b"")
        with self.assertRaises(TypeError):
            self.run_here(again, [1, 2])
        with self.assertRaises(samite.Error) as caught:
            samite.Capsule.decode(b"no capsule")
        self.assertEqual(caught.exception.code, 603)

    def test_what_cannot_become_a_kernel_says_why(self):
        @samite.mobile
        def sine(values):
            return math.sin(values[0])

        @samite.mobile
        def text(values):
            return str(values[0])

        @samite.mobile
        def sometimes(values):
            if values[0] > 1:
                return 3

        @samite.mobile
        def segment():
            return kernel.segment(0, np.float64)

        @samite.mobile
        def unknown(values):
            return values[0] + undefined_name  # noqa: F821

        @samite.mobile
        def variable(values):
            return kernel.buffer(values[0], np.int8)[0]

        @samite.mobile
        def generator(values):
            with open("file") as file:
                return file.read()

        @samite.mobile
        def square(values):
            return values.reshape((1, 1))

        def undecorated(value):
            return value

        @samite.mobile
        def calls_undecorated(values):
            return undecorated(values[0])

        for function, sentence in [
            (sine, "calls `sin` of a library"),
            (text, "a number, a tuple of numbers"),
            (sometimes, "always returns"),
            (segment, r"kernel.reply\(array\)"),
            (unknown, "global variables"),
            (variable, "a constant"),
            (generator, "cannot become a kernel"),
            (square, "2 dimensions"),
            (calls_undecorated, "@numba.njit"),
        ]:
            with self.assertRaisesRegex(samite.CompileError, sentence, msg=function):
                self.run_here(function, None if function is segment else [1])
        @samite.mobile
        def adds(values):
            return values[0] + "text"

        with self.assertRaisesRegex(samite.CompileError, "without a payload"):
            self.run_here(adds)
        with self.assertRaisesRegex(TypeError, "2 parameters"):
            samite.mobile(lambda a, b: a)
        with self.assertRaisesRegex(RuntimeError, "in a kernel only"):
            kernel.me()

    def test_a_missing_linker_is_named(self):
        @samite.mobile
        def one():
            return 1

        # `_rust_linker` remembers what it has found.
        no_rust = mock.patch.object(_target, "_rust_linker", return_value=None)
        with no_rust, mock.patch("shutil.which", return_value=None):
            with self.assertRaisesRegex(samite.CompileError, "install lld"):
                one.compile()
        self.assertEqual(self.run_here(one), 1)

    def test_the_linker_of_rust_will_do(self):
        if _target._rust_linker() is None:
            self.skipTest("a toolchain that is not of rustup has no linker")

        @samite.mobile
        def two():
            return 2

        linker = [_target._rust_linker(), "-flavor", "wasm"]
        with mock.patch.object(_target, "linker", return_value=linker):
            self.assertEqual(self.run_here(two), 2)

    def test_at_the_prompt(self):
        lines = (
            "import samite\n"
            "fabric = samite.alone()\n"
            "mobile = samite.Mobile(fabric)\n"
            "offset = 30\n"
            "@samite.mobile\n"
            "def added(values):\n"
            "    return values[0] + offset\n"
            "\n"
            "mobile.call(fabric.unit, added, 12).result()\n"
        )
        ended = subprocess.run(
            [sys.executable, "-i", "-q"], input=lines, capture_output=True, text=True, check=True
        )
        self.assertEqual(ended.stdout.strip(), "42", ended.stderr)

    def test_a_signature_that_comes_later_counts(self):
        mobile = self.mobile
        signed = samite.Capsule.decode(SIGNED)
        unsigned = samite.Capsule.decode(SIGNED[:-104])
        self.assertEqual((signed.hash, signed.signer), (unsigned.hash, SIGNER))
        self.assertIsNone(unsigned.signer)
        mobile.set_policy("signed-wasm", keys=[SIGNER.upper() + "\n"])
        self.addCleanup(mobile.set_policy, "wasm")
        self.addCleanup(mobile.evict, signed)
        with self.assertRaises(samite.Error) as caught:
            mobile.call(0, unsigned, b"hello").result()
        self.assertEqual(caught.exception.cause, "Refused")
        self.assertEqual(mobile.call(0, signed, b"hello").result(), b"hello")
        # That one is registered now, and stays so.
        self.assertEqual(mobile.call(0, unsigned, b"hello").result(), b"hello")

    def test_wrong_keys_capsules_and_limits_are_named(self):
        mobile = self.mobile
        for wrong in ("+1" * 32, "00", SIGNER + "0", b"secret"):
            with self.assertRaisesRegex(ValueError, "32 bytes, or 64 hexadecimal") as caught:
                mobile.set_policy("wasm", keys=[wrong])
            self.assertNotIn("secret", str(caught.exception))
        for entries, code in ((["run"], {}), ([], {"wasm": b""}), (["run"], {"bitcode": {}})):
            with self.assertRaisesRegex(ValueError, "at least one entry, and code"):
                samite.Capsule(entries, **code)
        with self.assertRaisesRegex(samite.Error, "no LLVM bitcode"):
            samite.Capsule(["run"], bitcode={"x86-64": b"bytes"})

        @samite.mobile
        def nothing():
            pass

        wrong = (
            ({"hops": 70000}, OverflowError, "`hops` is a number from 0 to 65535, not 70000"),
            ({"hops": -1}, OverflowError, "`hops`"),
            ({"grants": 1}, TypeError, "`grants` is a list"),
            ({"run": "1"}, TypeError, "`run` is a time in seconds, not 1"),
        )
        for limits, kind, text in wrong:
            with self.assertRaisesRegex(kind, text):
                mobile.call(0, nothing, **limits)
        with self.assertRaisesRegex(TypeError, "Python objects"):
            self.fabric.send(0, np.array([1.5, None]))


class Native(unittest.TestCase):
    def test_bitcode_gives_the_same_answers(self):
        fabric = samite.alone("native")
        mobile = samite.Mobile(fabric)
        segment = fabric.allocate(2 << 20)
        segment.array(np.int64)[:1000] = np.arange(1000)
        mobile.grant(0, segment, "read")

        def work(values):
            data = kernel.segment(0, np.int64)
            numbers = kernel.buffer(4, np.int64)
            kernel.copy_in(0, 80, numbers)
            if values[0] < 0:
                raise ValueError("negative")
            return data[: values[0]].sum(), numbers.max(), values.shape[0], kernel.load64(0, 8)

        moved = samite.mobile(work, native=True)
        capsule = moved.compile(np.int64)
        for form in ("Bitcode for x86-64", "Bitcode for aarch64", "Wasm for any"):
            self.assertIn(form, repr(capsule))
        sandboxed = mobile.call(0, moved, [100]).result()
        self.assertEqual(sandboxed, (4950, 13, 1, 1))
        code = _compiler.compile(work, np.dtype(np.int64))
        bitcode = {
            "x86-64": code.bitcode("x86_64-unknown-linux-gnu"),
            "aarch64": code.bitcode("aarch64-unknown-linux-gnu"),
        }
        native = samite.Capsule(["work"], bitcode=bitcode)
        with self.assertRaises(samite.Error) as caught:
            mobile.call(0, native, np.array([100])).result()
        self.assertEqual(caught.exception.cause, "Refused")
        mobile.set_policy("listed-native", hashes=[native.hash])
        try:
            mobile.prefetch(native, [0]).result()
        except samite.Error as error:
            if "libllvm22" in str(error):
                self.skipTest(str(error))
            raise
        reply = mobile.call(0, native, np.array([100])).result()
        self.assertEqual(code.read(reply), sandboxed)
        with self.assertRaisesRegex(samite.Error, "ValueError: negative"):
            mobile.call(0, native, np.array([-1])).result()

        def store():
            kernel.segment(0, np.int64)[0] = 5

        # Grant 0 is for reading. In WebAssembly, such a store ends the call.
        bitcode = _compiler.compile(store, None).bitcode("x86_64-unknown-linux-gnu")
        trusted = samite.Capsule(["store"], bitcode={"x86-64": bitcode})
        if platform.machine() == "x86_64":
            mobile.set_policy("listed-native", hashes=[trusted.hash])
            mobile.call(0, trusted).result()
            self.assertEqual(segment.array(np.int64)[0], 5)


if __name__ == "__main__":
    unittest.main()
