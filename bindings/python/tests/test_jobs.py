"""Jobs of several units, started by `samite run`."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

JOBS = pathlib.Path(__file__).parent / "jobs"

#: A process that offers memory, until it is told that another one has used it.
OWNER = """
import sys
import numpy, samite
with samite.join(sys.argv[1]) as fabric:
    segment = fabric.allocate(4096)
    segment.array(numpy.int64)[:3] = (5, 6, 7)
    print(fabric.domain, segment.key.hex(), flush=True)
    sys.stdin.readline()
    print(segment.array(numpy.int64)[:3].tolist(), flush=True)
"""
#: A process that uses it.
USER = """
import sys
import numpy, samite
with samite.join(sys.argv[1]) as fabric:
    remote = fabric.attach(bytes.fromhex(sys.argv[2]))
    assert remote.is_mapped and remote.array(numpy.int64)[1] == 6
    assert remote.fetch_add(0, 10) == 5
    print(numpy.frombuffer(remote.get(0, 24), numpy.int64).tolist(), flush=True)
"""


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

    def test_a_wait_ends_at_its_deadline_beside_one_that_does_not(self):
        self.assertEqual(self.lines("late.py", "-n", "2"), ["done"] * 2)

    def flow(self, job, option):
        """Runs three units of a job by a workflow file with an option; returns what they print."""
        with tempfile.TemporaryDirectory() as folder:
            flow = pathlib.Path(folder) / f"{job}.toml"
            flow.write_text(
                f'[job]\nname = "{job}"\n'
                f'[[program]]\nname = "{job}"\nunits = 3\n{option}\n'
                f'command = "{sys.executable}"\nargs = ["{JOBS / job}.py", "{folder}"]\n'
            )
            ended = self.run_job(str(flow))
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return sorted(line.split("] ", 1)[1] for line in ended.stdout.splitlines())

    def test_the_loss_of_a_unit_ends_the_waits_of_others(self):
        expected = ["barrier 1 fabric.PeerLost"] * 2 + ["call 1 None"] * 2
        self.assertEqual(self.flow("loss", "optional = true"), expected)

    def test_a_unit_that_was_started_again_has_its_number(self):
        self.assertEqual(self.flow("again", "restart = 1"), ["done"] * 3)

    def test_processes_join_a_running_domain(self):
        domain = f"python-joins-{os.getpid()}"

        def start(*line):
            started = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True,
            )
            self.addCleanup(started.communicate)
            self.addCleanup(started.kill)
            return started

        agent = start(shutil.which("samite"), "agent", "--domain", domain)
        while "ready" not in (line := agent.stdout.readline()):
            self.assertTrue(line, "the agent has ended")
        owner = start(sys.executable, "-c", OWNER, domain)
        joined, key = owner.stdout.readline().split()
        self.assertEqual(joined, domain)
        said, errors = start(sys.executable, "-c", USER, domain, key).communicate()
        self.assertEqual(said, "[15, 6, 7]\n", errors)
        said, errors = owner.communicate("used\n")
        self.assertEqual(said, "[15, 6, 7]\n", errors)
        self.assertEqual(owner.returncode, 0, errors)
        said, errors = start(sys.executable, "-c", OWNER, domain + "-other").communicate()
        self.assertIn("samite.Error", errors)
        self.assertIn("samite agent", errors)


if __name__ == "__main__":
    unittest.main()
