//! Lines from the pipes of many processes.
//!
//! The bytes of one pipe are split into lines before they are passed on, so lines of different
//! units are never mixed. A line without a newline is shown when its pipe ends; a very long one is
//! shown in pieces.

use crate::files::OutputFile;
use crate::plan::Name;
use crate::words::{LastWords, plain};
use serde::{Deserialize, Serialize};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

/// A longer line is shown in pieces, so that a unit cannot exhaust the launcher's memory.
const LONGEST_LINE: usize = 64 * 1024;
/// Marks a line for the launcher.
const MARKER: &[u8] = b"\x1eprogress ";

/// Something that happens while a job runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A process was started.
    Started {
        /// The process.
        name: &'a Name,
        /// Its process id, which is also that of its group.
        pid: u32,
    },
    /// A process printed a line.
    Line(Line<'a>),
    /// A unit reports its progress.
    Progress {
        /// The unit.
        name: &'a Name,
        /// The report.
        progress: Progress,
    },
    /// A process ended, and it is known whether it is started again: for a unit that is, the event
    /// comes after the pause. The processes of a job that could not be started are ended without
    /// it.
    Ended {
        /// The process.
        name: &'a Name,
        /// How it ended.
        exit: crate::Exit,
        /// Whether it failed and is started again.
        again: bool,
        /// When the launcher noticed the end.
        at: Instant,
    },
    /// All units have ended well. The agent of the job is still there.
    UnitsEnded,
    /// A line of a unit could not be written to its file (a full disk). The job goes on, and
    /// nothing more is written to this file. If nothing else fails, the job ends with
    /// [`crate::Error::OutputFile`].
    OutputLost {
        /// The unit.
        name: &'a Name,
        /// The file, which units may share.
        path: &'a Path,
        /// The error of the system.
        error: &'a io::Error,
    },
    /// A unit of an optional program failed, and the job goes on without it.
    Missed {
        /// The unit.
        name: &'a Name,
        /// How it ended.
        exit: crate::Exit,
        /// Its last lines, oldest first.
        said: Vec<String>,
    },
}

/// A line of output.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The process that printed it.
    pub name: &'a Name,
    /// The stream; always [`Stream::Stdout`] if descriptors are too few to distinguish them.
    pub stream: Stream,
    /// Whether it is to be shown with the name as a prefix.
    pub prefix: bool,
    /// The bytes without the newline.
    pub text: &'a [u8],
    /// False for a last line without a newline and for a piece of a long line.
    pub complete: bool,
}

impl Line<'_> {
    /// Writes the line as it is shown, `[solver.0] text`, in one write.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(self.text.len() + 32);
        if self.prefix {
            write!(bytes, "[{}] ", self.name)?;
        }
        bytes.extend_from_slice(self.text);
        if self.prefix || self.complete {
            bytes.push(b'\n');
        }
        out.write_all(&bytes)
    }
}

/// A standard stream of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A progress report of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The number of steps that are done.
    pub step: u64,
    /// The total number of steps, if the unit knows it.
    #[serde(default)]
    pub of: Option<u64>,
    /// A short note on the last step.
    #[serde(default)]
    pub note: Option<String>,
}

/// The pipes of one process and its last lines.
#[derive(Debug)]
pub(crate) struct Output {
    prefix: bool,
    pipes: Vec<Pipe>,
    /// The files that get standard output and standard error, in place of the caller.
    files: [Option<Rc<OutputFile>>; 2],
    last: LastWords,
    /// The text with which the process says that it is ready, until it has.
    ready: Option<String>,
    is_ready: bool,
}

#[derive(Debug)]
struct Pipe {
    stream: Stream,
    reader: PipeReader,
    lines: LineSplitter,
}

impl Output {
    pub(crate) fn new(prefix: bool, readers: Vec<(Stream, PipeReader)>) -> Self {
        let pipe = |(stream, reader)| Pipe {
            stream,
            reader,
            lines: LineSplitter::default(),
        };
        Self {
            prefix,
            pipes: readers.into_iter().map(pipe).collect(),
            files: [None, None],
            last: LastWords::default(),
            ready: None,
            is_ready: false,
        }
    }

    /// The process is ready when it has printed a line that contains this text.
    pub(crate) fn ready_after(mut self, text: Option<String>) -> Self {
        self.ready = text;
        self
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Writes standard output and standard error to these files.
    pub(crate) fn into_files(mut self, files: [Option<Rc<OutputFile>>; 2]) -> Self {
        self.files = files;
        self
    }

    /// Iterates over the pipes that are still open, in order.
    pub(crate) fn readers(&self) -> impl Iterator<Item = &PipeReader> {
        self.pipes.iter().map(|pipe| &pipe.reader)
    }

    /// Reads once from each pipe whose entry in `ready` is true; drops pipes that have ended.
    pub(crate) fn read(
        &mut self,
        name: &Name,
        ready: &[bool],
        on_event: &mut dyn FnMut(Event<'_>),
    ) {
        let (pipes, mut sink) = self.split(name, on_event);
        let mut ready = ready.iter().copied();
        pipes.retain_mut(|pipe| !ready.next().unwrap_or(false) || pipe.read(&mut sink).is_some());
    }

    /// Takes a line that a host has read.
    pub(crate) fn line(
        &mut self,
        name: &Name,
        stream: Stream,
        (text, complete): (&[u8], bool),
        on_event: &mut dyn FnMut(Event<'_>),
    ) {
        let (_, mut sink) = self.split(name, on_event);
        sink.line(stream, text, complete);
    }

    /// Reads what the pipes hold at this moment, and shows unfinished lines. What another process
    /// that still holds a pipe (a grandchild that left the group) writes from now on is not read.
    pub(crate) fn finish(&mut self, name: &Name, on_event: &mut dyn FnMut(Event<'_>)) {
        let (pipes, mut sink) = self.split(name, on_event);
        for mut pipe in pipes.drain(..) {
            let mut left = rustix::io::ioctl_fionread(&pipe.reader).unwrap_or(0);
            while left > 0 {
                match pipe.read(&mut sink) {
                    // Another process may have read the rest.
                    Some(0) | None => break,
                    Some(count) => left = left.saturating_sub(count as u64),
                }
            }
            pipe.end(&mut sink);
        }
    }

    /// Returns the pipes, and where their lines go.
    fn split<'a, 'f>(
        &'a mut self,
        name: &'a Name,
        on_event: &'a mut (dyn FnMut(Event<'_>) + 'f),
    ) -> (&'a mut Vec<Pipe>, Sink<'a, 'f>) {
        let sink = Sink {
            name,
            prefix: self.prefix,
            files: &self.files,
            last: &mut self.last,
            ready: self.ready.as_deref(),
            is_ready: &mut self.is_ready,
            on_event,
        };
        (&mut self.pipes, sink)
    }

    pub(crate) fn last_words(&self) -> &LastWords {
        &self.last
    }
}

impl Pipe {
    /// Reads once and returns the number of bytes, 0 if there are none now; `None` at the end.
    fn read(&mut self, sink: &mut Sink<'_, '_>) -> Option<usize> {
        let mut bytes = [0; 16 * 1024];
        match self.reader.read(&mut bytes) {
            Err(error) if is_for_now(&error) => Some(0),
            Ok(0) | Err(_) => {
                self.end(sink);
                None
            }
            Ok(count) => {
                let stream = self.stream;
                self.lines.push(&bytes[..count], |text, complete| {
                    sink.line(stream, text, complete)
                });
                Some(count)
            }
        }
    }

    fn end(&mut self, sink: &mut Sink<'_, '_>) {
        let stream = self.stream;
        self.lines
            .finish(|text, complete| sink.line(stream, text, complete));
    }
}

/// The destination of the lines of one process.
struct Sink<'a, 'f> {
    name: &'a Name,
    prefix: bool,
    files: &'a [Option<Rc<OutputFile>>; 2],
    last: &'a mut LastWords,
    ready: Option<&'a str>,
    is_ready: &'a mut bool,
    on_event: &'a mut (dyn FnMut(Event<'_>) + 'f),
}

impl Sink<'_, '_> {
    fn line(&mut self, stream: Stream, text: &[u8], complete: bool) {
        if let Some(progress) = progress_report(text) {
            (self.on_event)(Event::Progress {
                name: self.name,
                progress,
            });
            return;
        }
        self.last.hear(stream, text);
        let is_sign = |sign: &str| String::from_utf8_lossy(text).contains(sign);
        *self.is_ready = *self.is_ready || self.ready.is_some_and(is_sign);
        if let Some(file) = &self.files[stream as usize] {
            if let Some(error) = file.write(text, complete) {
                let (name, path) = (self.name, file.path());
                (self.on_event)(Event::OutputLost { name, path, error });
            }
            return;
        }
        let (name, prefix) = (self.name, self.prefix);
        (self.on_event)(Event::Line(Line {
            name,
            stream,
            prefix,
            text,
            complete,
        }));
    }
}

/// Creates a pipe whose reader never waits. A unit can open its own pipe for reading
/// (`/proc/self/fd/1`), and take the bytes that the launcher was told of.
pub(crate) fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

/// Returns true if there is nothing to read now, although there may be later.
pub(crate) fn is_for_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
    )
}

/// Parses the report in a marked line; a line that only looks like one is shown as it is.
fn progress_report(text: &[u8]) -> Option<Progress> {
    let mut report: Progress = serde_json::from_slice(text.strip_prefix(MARKER)?).ok()?;
    report.note = report.note.map(|note| plain(&note));
    Some(report)
}

/// Splits a stream of bytes at its newlines, regardless of the pieces in which it arrives.
#[derive(Debug, Default)]
struct LineSplitter {
    partial: Vec<u8>,
}

impl LineSplitter {
    /// Passes each line to `emit`, without its newline. `complete` is false for a piece of a line
    /// that is too long.
    fn push(&mut self, mut bytes: &[u8], mut emit: impl FnMut(&[u8], bool)) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.extend(&bytes[..end], &mut emit);
            emit(&self.partial, true);
            self.partial.clear();
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes, &mut emit);
    }

    /// Passes on the rest without a newline when the stream has ended.
    fn finish(&mut self, mut emit: impl FnMut(&[u8], bool)) {
        if !self.partial.is_empty() {
            emit(&self.partial, false);
            self.partial.clear();
        }
    }

    fn extend(&mut self, mut bytes: &[u8], emit: &mut impl FnMut(&[u8], bool)) {
        while self.partial.len() + bytes.len() > LONGEST_LINE {
            let (head, tail) = bytes.split_at(LONGEST_LINE - self.partial.len());
            self.partial.extend_from_slice(head);
            let end = end_of_piece(&self.partial, tail[0]);
            emit(&self.partial[..end], false);
            self.partial.drain(..end);
            bytes = tail;
        }
        self.partial.extend_from_slice(bytes);
    }
}

/// Returns where a piece ends that is followed by the byte `next`: not inside of a character.
fn end_of_piece(piece: &[u8], next: u8) -> usize {
    let is_inside = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
    if !is_inside(next) {
        return piece.len();
    }
    // The first byte of a character has at most three behind it.
    let mut ends = (piece.len().saturating_sub(3)..piece.len()).rev();
    let first = ends.find(|at| !is_inside(piece[*at]));
    first.filter(|at| *at > 0).unwrap_or(piece.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use samite_testkit::fuzz::{self, bytes, mutate};

    fn split(pieces: &[Vec<u8>]) -> Vec<(Vec<u8>, bool)> {
        let mut lines = Vec::new();
        let mut splitter = LineSplitter::default();
        let mut emit = |text: &[u8], complete| lines.push((text.to_vec(), complete));
        for piece in pieces {
            splitter.push(piece, &mut emit);
        }
        splitter.finish(&mut emit);
        lines
    }

    proptest! {
        /// However the bytes are split into reads, the lines are those of the whole text.
        #[test]
        fn lines_do_not_depend_on_the_cuts(
            pieces in prop::collection::vec(prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..40), 0..20)
        ) {
            let lines = split(&pieces);
            let whole = pieces.concat();
            let mut again = Vec::new();
            for (text, complete) in &lines {
                prop_assert!(!text.contains(&b'\n'));
                again.extend_from_slice(text);
                if *complete { again.push(b'\n'); }
            }
            prop_assert_eq!(&again, &whole);
            prop_assert_eq!(lines, split(&[whole]));
        }
    }

    #[test]
    fn a_long_line_comes_in_pieces() {
        let mut text = vec![b'x'; 2 * LONGEST_LINE + 5];
        text.push(b'\n');
        let lines: Vec<(usize, bool)> = split(&[text])
            .into_iter()
            .map(|(text, complete)| (text.len(), complete))
            .collect();
        assert_eq!(
            lines,
            [(LONGEST_LINE, false), (LONGEST_LINE, false), (5, true)]
        );
    }

    #[test]
    fn no_character_is_cut() {
        for before in 0..4 {
            let mut text = "x".repeat(LONGEST_LINE - before).into_bytes();
            text.extend("\u{1f40c}y".as_bytes());
            let lines = split(&[text]);
            assert_eq!(lines.len(), 2);
            let end = std::str::from_utf8(&lines[1].0).expect("whole characters");
            assert_eq!(end, "\u{1f40c}y", "{before}");
        }
        // Bytes that are no text have no characters.
        let lines = split(&[vec![0x80; LONGEST_LINE + 1]]);
        assert_eq!((lines[0].0.len(), lines[1].0.len()), (LONGEST_LINE, 1));
    }

    #[test]
    fn progress_reports_are_recognised() {
        let report = progress_report(b"\x1eprogress {\"step\":3,\"of\":100,\"note\":\"fine\"}");
        assert_eq!(
            report,
            Some(Progress {
                step: 3,
                of: Some(100),
                note: Some("fine".into())
            })
        );
        assert_eq!(
            progress_report(b"\x1eprogress {\"step\":1}").map(|report| report.step),
            Some(1)
        );
        assert_eq!(progress_report(b"\x1eprogress rubbish"), None);
        assert_eq!(progress_report(b"progress {\"step\":1}"), None);
    }

    #[test]
    fn lines_are_shown_with_or_without_a_name() {
        let name = Name::unit("solver", 0);
        let mut line = Line {
            name: &name,
            stream: Stream::Stdout,
            prefix: true,
            text: b"hi",
            complete: false,
        };
        let shown = |line: &Line<'_>| {
            let mut out = Vec::new();
            line.write_to(&mut out).expect("a Vec takes everything");
            out
        };
        assert_eq!(shown(&line), b"[solver.0] hi\n");
        line.prefix = false;
        assert_eq!(shown(&line), b"hi");
        line.complete = true;
        assert_eq!(shown(&line), b"hi\n");
    }

    /// Whatever a process prints, including invalid reports, the launcher shows every byte outside
    /// of a valid report once, and keeps little of it.
    #[test]
    fn no_output_breaks_a_launcher() {
        let report = b"\x1eprogress {\"step\":3,\"of\":100,\"note\":\"fine\"}\n";
        let name = "output::tests::no_output_breaks_a_launcher";
        fuzz::rounds(name, 1000, |_, random| {
            let mut text = Vec::new();
            for _ in 0..random.u32(..6) {
                let mut part = match random.u32(..4) {
                    0 => vec![b'x'; random.usize(..2 * LONGEST_LINE)],
                    1 => [MARKER, &vec![b'['; random.usize(..9000)], b"\n"].concat(),
                    2 => bytes(random, 300),
                    _ => report.to_vec(),
                };
                mutate(random, &mut part);
                text.append(&mut part);
            }
            let (mut shown, mut reports) = (0, 0);
            let unit = Name::unit("a", 0);
            let mut last = LastWords::default();
            let mut on_event = |event: Event<'_>| match event {
                Event::Line(line) => {
                    assert!(line.text.len() <= LONGEST_LINE);
                    shown += line.text.len() + usize::from(line.complete);
                }
                Event::Progress { .. } => reports += 1,
                _ => panic!("another event"),
            };
            let mut sink = Sink {
                name: &unit,
                prefix: true,
                files: &[None, None],
                last: &mut last,
                ready: None,
                is_ready: &mut false,
                on_event: &mut on_event,
            };
            let mut lines = LineSplitter::default();
            let mut hidden = 0;
            let mut emit = |text: &[u8], complete: bool| {
                if progress_report(text).is_some() {
                    hidden += text.len() + usize::from(complete);
                }
                sink.line(Stream::Stdout, text, complete);
            };
            let mut rest = text.as_slice();
            while !rest.is_empty() {
                let (piece, others) = rest.split_at(random.usize(1..=rest.len().min(16 << 10)));
                lines.push(piece, &mut emit);
                rest = others;
            }
            lines.finish(&mut emit);
            assert_eq!(shown + hidden, text.len(), "{reports} reports");
            let kept: usize = last.shown().iter().map(String::len).sum();
            assert!(kept <= 1 << 20, "{kept}");
        });
    }

    /// The kernel has said that there are bytes, but another process has read them.
    #[test]
    fn a_pipe_that_another_process_has_emptied_delays_nothing() {
        let (reader, mut writer) = pipe().expect("a pipe");
        let mut output = Output::new(true, vec![(Stream::Stdout, reader)]);
        let unit = Name::unit("a", 0);
        output.read(&unit, &[true], &mut |_| {});
        assert_eq!(output.readers().count(), 1);
        writer.write_all(b"late\n").expect("it fits into the pipe");
        output.read(&unit, &[true], &mut |_| {});
        assert_eq!(output.last_words().shown(), ["late"]);
    }

    #[test]
    fn what_is_left_in_a_pipe_is_heard() {
        let (reader, mut writer) = pipe().expect("a pipe");
        writer
            .write_all(b"1\n2\n\n3")
            .expect("it fits into the pipe");
        let mut output = Output::new(true, vec![(Stream::Stdout, reader)]);
        output.finish(&Name::unit("a", 0), &mut |_| {});
        assert_eq!(output.last_words().shown(), ["1", "2", "3"]);
    }
}
