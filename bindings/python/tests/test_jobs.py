"""Jobs of several units, started by `samite run`."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

JOBS = pathlib.Path(__file__).parent / "jobs"


class Jobs(unittest.TestCase):
    def run_job(self, *arguments):
        samite = shutil.which("samite")
        self.assertIsNotNone(samite, "the tests of jobs need `samite` in PATH")
        return subprocess.run(
            [samite, "run", *arguments], capture_output=True, text=True, check=False
        )

    def lines(self, job, *arguments):
        ended = self.run_job(*arguments, sys.executable, str(JOBS / job))
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return sorted(line.split("] ", 1)[1] for line in ended.stdout.splitlines())

    def test_kernels_move_over_units(self):
        self.assertEqual(self.lines("ring.py", "-n", "3"), ["done"] * 3)

    def test_kernels_move_over_nodes(self):
        nodes = ("--config", "fabric.nodes=2")
        self.assertEqual(self.lines("ring.py", *nodes, "-n", "3"), ["done"] * 3)

    def test_a_thread_serves_while_another_computes(self):
        self.assertEqual(self.lines("serving.py", "-n", "2"), ["done"] * 2)

    def test_the_loss_of_a_unit_ends_the_waits_of_others(self):
        with tempfile.TemporaryDirectory() as folder:
            flow = pathlib.Path(folder) / "loss.toml"
            flow.write_text(
                '[job]\nname = "loss"\n'
                '[[program]]\nname = "loss"\nunits = 3\noptional = true\n'
                f'command = "{sys.executable}"\nargs = ["{JOBS / "loss.py"}"]\n'
            )
            ended = self.run_job(str(flow))
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        said = sorted(line.split("] ", 1)[1] for line in ended.stdout.splitlines())
        expected = ["barrier 1 fabric.PeerLost"] * 2 + ["call 1 None"] * 2
        self.assertEqual(said, expected, ended.stderr)


if __name__ == "__main__":
    unittest.main()
