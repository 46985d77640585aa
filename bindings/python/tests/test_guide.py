"""The sessions and programs in docs/python.md give what the page says."""

import ast
import doctest
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

import samite

ROOT = pathlib.Path(__file__).parents[3]
PAGE = ROOT / "docs" / "python.md"

#: Kernels may run for a second, in place of 10 ms, since tests run beside other programs.
PATIENT = """
import functools, samite
samite.Mobile.call = functools.partialmethod(samite.Mobile.call, run=1.0)
"""
#: What unit 0 does in the program of the page. Other fragments take its place.
LOOP = """\
        for unit in range(fabric.units):
            print(mobile.call(unit, total, [0.5]).result())
"""
UNITS = 4
#: How many elements the segment of each unit has; each of them is the number of the unit.
ELEMENTS = (2 << 20) // 8


def programs(page):
    """Returns the programs of a page that are not at the prompt."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


class Guide(unittest.TestCase):
    def test_the_sessions_of_the_page(self):
        lines = PAGE.read_text().splitlines()
        # The end of a block would be taken for output.
        text = "\n".join("" if line.startswith("```") else line for line in lines)
        test = doctest.DocTestParser().get_doctest(text, {}, "python.md", str(PAGE), 0)
        self.assertGreater(len(test.examples), 20)
        said = []
        doctest.DocTestRunner(verbose=False).run(test, out=said.append)
        self.assertFalse(said, "".join(said))

    def run_job(self, program):
        """Returns what the units of a program print."""
        samite = shutil.which("samite")
        self.assertIsNotNone(samite, "the tests of programs need `samite` in PATH")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "program.py"
            file.write_text(PATIENT + program)
            # The first unit compiles, while the others wait.
            options = ["--config", "fabric.deadline=600s", "-n", str(UNITS)]
            ended = subprocess.run(
                [samite, "run", *options, sys.executable, str(file)],
                capture_output=True, text=True, check=False,
            )
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return [line.split("] ", 1)[1] for line in ended.stdout.splitlines()]

    def run_at_unit_0(self, fragment):
        program, _ = programs(PAGE)
        self.assertEqual(program.count(LOOP), 1, program)
        return self.run_job(program.replace(LOOP, textwrap.indent(fragment, " " * 8)))

    def test_the_program_of_the_page(self):
        program, _ = programs(PAGE)
        sums = [str(unit * ELEMENTS + 0.5) for unit in range(UNITS)]
        self.assertEqual(self.run_job(program), sums)

    def test_the_kernel_that_moves_through_all_units(self):
        _, fragment = programs(PAGE)
        total = float(ELEMENTS * sum(range(UNITS)))
        self.assertEqual(self.run_at_unit_0(fragment + "print(total)\n"), [str(total)])

    def test_the_fragment_of_the_page_of_moved_code(self):
        (fragment,) = programs(PAGE.with_name("mobile.md"))
        *lines, call = fragment.splitlines()
        shown = "\n".join([*lines, f"print({call})\n"])
        self.assertEqual(self.run_at_unit_0(shown), [str(ELEMENTS + 0.5)])

    def test_the_program_is_the_same_on_all_pages(self):
        page, _ = programs(PAGE)
        (readme,) = programs(ROOT / "bindings" / "python" / "README.md")
        lines = samite.__doc__.splitlines()
        module = "\n".join(line for line in lines if not line or line.startswith("    "))
        for program in (readme, textwrap.dedent(module)):
            self.assertEqual(ast.dump(ast.parse(program)), ast.dump(ast.parse(page)))


if __name__ == "__main__":
    unittest.main()
