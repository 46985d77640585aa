"""The sessions in docs/python.md give what the page says."""

import doctest
import pathlib
import unittest

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "python.md"


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


if __name__ == "__main__":
    unittest.main()
