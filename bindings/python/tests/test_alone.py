"""One process: memory as arrays, errors, waits."""

import gc
import os
import signal
import sys
import subprocess
import threading
import time
import traceback
import unittest

import numpy as np
import samite


class Names(unittest.TestCase):
    def test_all_public_names_are_documented(self):
        named = {f"samite.{name}": getattr(samite, name) for name in samite.__all__}
        named |= {f"kernel.{name}": getattr(samite.kernel, name) for name in samite.kernel.__all__}
        for name, of in list(named.items()):
            if isinstance(of, type):
                members = {at: getattr(of, at) for at in dir(of) if not at.startswith("_")}
                named |= {f"{name}.{at}": member for at, member in members.items()}
        usual = set(dir(Exception))
        # What an error has is described with its class.
        fields = {"code", "name", "cause", "path"}
        checked = [name for name in named if name.split(".")[-1] not in usual | fields]
        self.assertGreater(len(checked), 60)
        bare = [name for name in checked if not (named[name].__doc__ or "").strip()]
        self.assertEqual(bare, [])


class Memory(unittest.TestCase):
    def setUp(self):
        self.fabric = samite.alone("memory")
        self.addCleanup(self.fabric.close)

    def test_an_array_is_the_memory_of_its_segment(self):
        segment = self.fabric.allocate(1 << 20)
        self.assertEqual((segment.nbytes, len(segment), len(segment.key)), (1 << 20, 1 << 20, 24))
        table = segment.array(np.float64, (4, 8), offset=64)
        self.assertEqual(table.sum(), 0)
        table[1, 2] = 1.5
        remote = self.fabric.attach(segment.key)
        at = 64 + (8 + 2) * 8
        self.assertEqual(np.frombuffer(remote.get(at, 8))[0], 1.5)
        remote.put(at, np.array([2.5]))
        self.assertEqual(table[1, 2], 2.5)
        self.assertTrue(remote.is_mapped)
        remote.array(np.int64)[0] = 7
        self.assertEqual(remote.fetch_add(0, 3), 7)
        self.assertEqual(remote.compare_exchange(0, 10, 20), 10)
        self.assertEqual(segment.array(np.int64)[0], 20)
        self.assertEqual(segment.array().shape, (1 << 20,))

    def test_an_array_does_not_reach_beyond_its_segment(self):
        segment = self.fabric.allocate(4096)
        for shape, offset in [(513, 0), ((2, 512), 0), (512, 8), (1, 4096), (1, 1 << 40)]:
            with self.assertRaises((TypeError, ValueError), msg=(shape, offset)):
                segment.array(np.float64, shape, offset=offset)
        with self.assertRaises(ValueError):
            segment.array(np.float64, offset=4097)
        self.assertEqual(segment.array(np.float64, offset=4096).shape, (0,))
        self.assertEqual(segment.array(np.float64, 1, offset=4088).tolist(), [0.0])
        for shape, offset in [(2**63 - 1, 64), (8, 2**63 - 8), (8, 2**64 - 8), ((2**32, 2**32), 0)]:
            with self.assertRaises((TypeError, ValueError), msg=(shape, offset)):
                segment.array(np.uint8, shape, offset=offset)
        with self.assertRaises(ValueError):
            segment.array(object)

    def test_an_array_keeps_its_memory(self):
        segment = self.fabric.allocate(4 << 20)
        part = segment.array(np.int64)[100:200].reshape(10, 10)
        part[:] = 3
        segment.free()
        del segment
        gc.collect()
        # Memory that is not kept would be given to these, zeroed.
        others = [self.fabric.allocate(4 << 20) for _ in range(4)]
        for other in others:
            other.array(np.int64)[:] = 9
        self.assertEqual(part.sum(), 300)

    def test_an_array_outlives_its_fabric(self):
        with samite.alone("short") as fabric:
            array = fabric.allocate(4096).array(np.uint8)
            array[:] = 1
        del fabric
        gc.collect()
        self.assertEqual(int(array.sum()), 4096)

    def test_a_fork_has_no_segments(self):
        segment = self.fabric.allocate(4096)
        remote = self.fabric.attach(segment.key)
        before = segment.array()
        before[:] = 1
        process = os.fork()
        if process == 0:
            try:
                self.assertEqual(before.sum(), 0)
                for refused in (segment.array, remote.array, lambda: segment.key):
                    with self.assertRaisesRegex(RuntimeError, "is a fork of"):
                        refused()
                with self.assertRaises(samite.Error):
                    remote.get(0, 8)
                self.assertIn("4096 bytes", repr(segment))
                before[:] = 2
                os._exit(7)
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(1)
        _, status = os.waitpid(process, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 7)
        self.assertEqual(before.sum(), 4096)

    def test_what_was_freed_or_closed_says_so(self):
        segment = self.fabric.allocate(4096)
        key = segment.key
        segment.free()
        with self.assertRaisesRegex(ValueError, "was freed"):
            segment.array()
        with self.assertRaises(samite.Error) as caught:
            self.fabric.attach(key)
        self.assertEqual((caught.exception.code, caught.exception.name), (8, "fabric.NoSuchSegment"))
        self.fabric.close()
        with self.assertRaisesRegex(RuntimeError, "was closed"):
            self.fabric.allocate(4096)

    def test_wrong_arguments_are_refused(self):
        with self.assertRaisesRegex(ValueError, "24 bytes"):
            self.fabric.attach(b"short")
        segment = self.fabric.allocate(4096)
        remote = self.fabric.attach(segment.key)
        # None: a function that returns nothing by mistake.
        for no_bytes in (5, [1, 2, 3], (1, 2), "text", None):
            takes_bytes = (
                lambda: self.fabric.send(0, no_bytes),
                lambda: remote.put(0, no_bytes),
                lambda: self.fabric.attach(no_bytes),
                lambda: samite.Capsule.decode(no_bytes),
            )
            for refuses in takes_bytes:
                with self.assertRaisesRegex(TypeError, "another buffer", msg=no_bytes):
                    refuses()
        with self.assertRaises(IndexError):
            self.fabric.send(1, b"to nobody")
        with self.assertRaises(ValueError):
            self.fabric.recv(timeout=-1.0)
        with self.assertRaises(samite.Error) as caught:
            self.fabric.allocate(1 << 60)
        self.assertEqual(caught.exception.code, 12)


class Waits(unittest.TestCase):
    def setUp(self):
        self.fabric = samite.alone("waits")
        self.addCleanup(self.fabric.close)

    def test_messages(self):
        self.fabric.send(0, b"woven", 7)
        self.fabric.send(0, np.arange(3, dtype=np.int32), 8)
        self.assertEqual(self.fabric.recv(tag=7), b"woven")
        self.assertEqual(np.frombuffer(self.fabric.recv(0, 8), np.int32).tolist(), [0, 1, 2])
        for data in (bytearray(b"woven"), memoryview(b"w0o0v0e0n0")[::2]):
            self.fabric.send(0, data, 7)
            self.assertEqual(self.fabric.recv(tag=7), b"woven")
        self.fabric.send(0, b"from", 9)
        self.assertEqual(self.fabric.recv_from(9), (0, b"from"))
        self.fabric.barrier()

    def test_a_wait_ends_at_its_deadline(self):
        with self.assertRaises(samite.Error) as caught:
            self.fabric.recv(timeout=0.02)
        self.assertEqual((caught.exception.code, caught.exception.name), (3, "fabric.Timeout"))
        self.assertIn("no message with tag 0", str(caught.exception))
        self.fabric.deadline = 0.01
        with self.assertRaises(samite.Error):
            self.fabric.recv()

    def test_other_threads_run_during_a_wait(self):
        received = []
        thread = threading.Thread(target=lambda: received.append(self.fabric.recv(tag=1)))
        thread.start()
        # The thread waits for what this one sends: neither would end if the wait kept the
        # interpreter.
        self.fabric.send(0, b"go", 1)
        thread.join()
        self.assertEqual(received, [b"go"])

    def test_a_signal_ends_a_wait(self):
        program = (
            "import samite, sys\n"
            "fabric = samite.alone()\n"
            "try:\n"
            "    print('waiting', flush=True)\n"
            "    fabric.recv(timeout=1000)\n"
            "except KeyboardInterrupt:\n"
            "    fabric.send(0, b'still there')\n"
            "    print(fabric.recv().decode())\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        )
        self.assertEqual(process.stdout.readline(), "waiting\n")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
        self.assertEqual((process.returncode, output), (0, "still there\n"))

    def test_a_wait_goes_on_after_a_signal_that_is_handled(self):
        handled = []
        before = signal.signal(signal.SIGUSR1, lambda *_: handled.append(True))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)

        def send():
            os.kill(os.getpid(), signal.SIGUSR1)
            while not handled:
                time.sleep(0)  # the handler runs in the main thread, during its wait
            self.fabric.send(0, b"after it")

        thread = threading.Thread(target=send)
        thread.start()
        self.assertEqual(self.fabric.recv(timeout=1000), b"after it")
        thread.join()


if __name__ == "__main__":
    unittest.main()
