//! The last words of a process: of all that it prints, the lines that say why it failed.

use crate::output::Stream;
use std::collections::VecDeque;

/// How many lines of each stream are kept: a panic of a thread, that of the thread that joins it,
/// and the error of the program.
const KEPT: usize = 10;
/// How many of these are shown if none of them is a panic.
const SHOWN: usize = 4;
/// The maximum length of a kept line, so that a unit cannot exhaust the launcher's memory.
const LONGEST: usize = 16 << 10;

/// The last lines of each stream of a process, in order of arrival. Those of a backtrace are left
/// out: a backtrace follows the message that matters, and is longer than all that is kept.
#[derive(Debug, Default)]
pub(crate) struct LastWords {
    lines: VecDeque<(Stream, String)>,
    /// Whether a backtrace has begun on standard output, and on standard error.
    in_backtrace: [bool; 2],
}

impl LastWords {
    pub(crate) fn hear(&mut self, stream: Stream, text: &[u8]) {
        if text.trim_ascii().is_empty() || self.is_of_backtrace(stream, text) {
            return;
        }
        // A program may write its output when it ends, after its error.
        let of_stream = |(of, _): &(Stream, String)| *of == stream;
        if self.lines.iter().filter(|line| of_stream(line)).count() == KEPT
            && let Some(oldest) = self.lines.iter().position(of_stream)
        {
            self.lines.remove(oldest);
        }
        let mut line = plain(&String::from_utf8_lossy(&text[..text.len().min(LONGEST)]));
        if let Some(more) = text.len().checked_sub(LONGEST).filter(|more| *more > 0) {
            line += &format!(" … ({more} more bytes)");
        }
        self.lines.push_back((stream, line));
    }

    /// Returns true for `stack backtrace:`, for the frames after it, and for the hint to ask for
    /// one. Lines of other threads may come between the frames.
    fn is_of_backtrace(&mut self, stream: Stream, text: &[u8]) -> bool {
        let line = text.trim_ascii();
        let in_backtrace = &mut self.in_backtrace[stream as usize];
        if line.eq_ignore_ascii_case(b"stack backtrace:") {
            *in_backtrace = true;
            return true;
        }
        if begins_error(&String::from_utf8_lossy(line)) {
            *in_backtrace = false;
        }
        // Frames are `   3: function` and `          at file:line:column`.
        let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let is_frame = text.starts_with(b" ")
            && (line.starts_with(b"at ") || (digits > 0 && line[digits..].starts_with(b":")));
        let is_hint = line.starts_with(b"note: run with `RUST_BACKTRACE=")
            || line.starts_with(b"note: Some details are omitted, run with `RUST_BACKTRACE=");
        (*in_backtrace && is_frame) || is_hint
    }

    /// Returns the lines to show, oldest first: from the first panic on, or else the last four.
    pub(crate) fn shown(&self) -> Vec<String> {
        let panic = self.lines.iter().position(|(_, line)| is_panic(line));
        let first = panic.unwrap_or(self.lines.len().saturating_sub(SHOWN));
        let shown = self.lines.iter().skip(first);
        shown.map(|(_, line)| line.clone()).collect()
    }

    /// Returns the error that ended the process, as far as its words say: from the last line that
    /// begins one, on the same stream, or else the last line on standard error, or else the last
    /// line.
    pub(crate) fn error(&self) -> String {
        let lines = || self.lines.iter();
        if let Some(first) = lines().rposition(|(_, line)| begins_error(line)) {
            let stream = self.lines[first].0;
            let error = lines().skip(first).filter(|(of, _)| *of == stream);
            let error: Vec<&str> = error.map(|(_, line)| &**line).collect();
            return error.join("\n");
        }
        let stderr = lines().rfind(|(stream, _)| *stream == Stream::Stderr);
        let last = stderr.or(self.lines.back());
        last.map_or(String::new(), |(_, line)| line.clone())
    }
}

/// Returns true for the line with which the error of a program begins.
fn begins_error(line: &str) -> bool {
    is_panic(line) || line.starts_with("Error: ") || line.starts_with("samite: ")
}

/// Removes what would act on a terminal: colours and other control sequences. Other control
/// characters become U+FFFD. Words of a unit are shown inside of messages of the launcher.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        // A control sequence (ECMA-48) ends with a character from `@` to `~`.
        if letter == '\u{1b}' && letters.as_str().starts_with('[') {
            letters.next();
            let _ = letters.find(|letter| ('@'..='~').contains(letter));
            continue;
        }
        let is_harmless = letter == '\t' || !letter.is_control();
        plain.push(if is_harmless { letter } else { '\u{fffd}' });
    }
    plain
}

/// Returns true for the line with which the message of a panic begins.
pub(crate) fn is_panic(line: &str) -> bool {
    line.starts_with("thread '") && line.contains("panicked at")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> LastWords {
        let mut words = LastWords::default();
        for line in text.lines() {
            words.hear(Stream::Stderr, line.as_bytes());
        }
        words
    }

    #[test]
    fn the_last_lines_are_kept() {
        assert_eq!(words("1\n2\n\n3\n4\n5\n6").shown(), ["3", "4", "5", "6"]);
        assert_eq!(words("").error(), "");
    }

    #[test]
    fn a_long_line_is_kept_whole() {
        let long = "x".repeat(LONGEST);
        assert_eq!(words(&long).shown().concat(), long);
        let longer = words(&(long + "yy")).shown().remove(0);
        assert!(longer.ends_with("x … (2 more bytes)"));
    }

    #[test]
    fn words_do_not_act_on_the_terminal() {
        let coloured = words("\x1b[1;31mError: \x1b[0mthe disk\tis full\r\x1b]0;x\x07");
        let said = "Error: the disk\tis full\u{fffd}\u{fffd}]0;x\u{fffd}";
        assert_eq!(coloured.error(), said);
        assert_eq!(words("cut \x1b[1").shown(), ["cut "]);
    }

    #[test]
    fn a_backtrace_does_not_hide_the_panic_before_it() {
        let frames: String = (0..40)
            .map(|at| {
                format!("  {at:2}: core::panicking::panic_fmt\n             at /lib.rs:{at}:5\n")
            })
            .collect();
        let text = format!(
            "step 3\nthread 'main' (7) panicked at src/main.rs:3:5:\nassertion failed\n  left: 1\n \
             right: 2\nstack backtrace:\n{frames}note: Some details are omitted, run with \
             `RUST_BACKTRACE=full` for a verbose backtrace.\n"
        );
        let shown = words(&text).shown();
        assert_eq!(shown[0], "thread 'main' (7) panicked at src/main.rs:3:5:");
        assert_eq!(shown[1..], ["assertion failed", "  left: 1", " right: 2"]);
        // Lines that look like frames are ordinary lines outside of one.
        let listing = words("  1: one\n  at home");
        assert_eq!(listing.shown(), ["  1: one", "  at home"]);
    }

    #[test]
    fn the_error_is_what_the_program_ended_with() {
        let error = |text| words(text).error();
        assert_eq!(
            error("peer 3 was lost, going on\nError: the disk is full"),
            "Error: the disk is full"
        );
        let chain = "Error: cannot sort\n\nCaused by:\n    peer 3 was lost";
        assert!(error(chain).ends_with("peer 3 was lost"));
        let mut words = words("broken");
        words.hear(Stream::Stdout, b"flushed at the end");
        assert_eq!(words.error(), "broken");
    }

    #[test]
    fn output_that_is_flushed_at_the_end_does_not_hide_the_error() {
        for error in ["broken", "Error: solver.1 was lost during a barrier"] {
            let mut words = words(error);
            for line in 0..2 * KEPT {
                words.hear(Stream::Stdout, format!("rank {line}").as_bytes());
            }
            assert_eq!(words.error(), error);
        }
    }

    #[test]
    fn a_line_of_another_thread_does_not_end_a_backtrace() {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let mut words = words("thread 'w' panicked at a.rs:1:2:\nPeerLost\nstack backtrace:");
            for frame in 0..40 {
                words.hear(Stream::Stderr, format!("  {frame:2}: f").as_bytes());
                words.hear(Stream::Stderr, b"          at b.rs:1:2");
                if frame == 20 {
                    words.hear(stream, b"step 17");
                }
            }
            assert!(words.error().contains("PeerLost"), "{words:?}");
            assert_eq!(words.shown().len(), 3, "{words:?}");
            // The causes of an error, which come after it, look like frames.
            words.hear(Stream::Stderr, b"Error: no");
            words.hear(Stream::Stderr, b"   0: disk full");
            assert_eq!(words.error(), "Error: no\n   0: disk full");
        }
    }
}
