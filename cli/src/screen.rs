//! Output for people: sizes, tables, and for a running job the lines of its units and a bar for
//! each program that reports progress.

use crate::style::{Out, is_quiet, paint, text};
use anyhow::Context;
use bytesize::ByteSize;
use clap::builder::styling::AnsiColor;
use comfy_table::{Table, presets};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use samite_launch::{Backlog, Event, Interrupts, Line, Name, Progress, Stream};
use std::collections::BTreeMap;
use std::io::{self, PipeReader, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The reader of a command's output is gone (`samite doctor | head`), so nothing is left to do.
#[derive(Debug)]
pub(crate) struct NobodyReads;

impl std::fmt::Display for NobodyReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads the standard output")
    }
}

impl std::error::Error for NobodyReads {}

/// Prints text. Every command prints with this.
///
/// # Errors
/// [`NobodyReads`], on which a command ends silently; a failure to write the output.
pub(crate) fn say(text: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(NobodyReads.into()),
        result => result.context("cannot write to the standard output"),
    }
}

/// Prints what the parser of a command line says: help, or an error.
///
/// # Errors
/// As [`say`], for help. If an error cannot be printed, no place is left for it.
pub(crate) fn print(said: &clap::Error) -> anyhow::Result<()> {
    let shown = said.render();
    if !said.use_stderr() {
        return say(format_args!("{}", text(Out::Stdout, &shown)));
    }
    let _ = io::stderr().write_all(text(Out::Stderr, &shown).as_bytes());
    Ok(())
}

/// Prints an error on standard error. If it cannot be written there, no place is left for it.
pub(crate) fn warn(message: std::fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(warned(message).as_bytes());
}

fn warned(message: std::fmt::Arguments<'_>) -> String {
    let name = paint(Out::Stderr, AnsiColor::Red, "samite:");
    format!("{name} {message}\n")
}

/// Prints a note on standard error, unless the user wants none (`--quiet`).
pub(crate) fn note(message: std::fmt::Arguments<'_>) {
    if !is_quiet() {
        let _ = io::stderr().write_all(noted(message).as_bytes());
    }
}

fn noted(message: std::fmt::Arguments<'_>) -> String {
    let name = paint(Out::Stderr, AnsiColor::Yellow, "samite:");
    format!("{name} {message}\n")
}

/// Returns a name as it can be shown: names come from programs, and must not move the cursor.
pub(crate) fn printable(name: &str) -> String {
    let letters = name.chars();
    let letter = |letter: char| match letter.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => letter,
    };
    letters.map(letter).collect()
}

/// Formats a size for people.
pub(crate) fn size(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// Returns a table with this header and no inner lines.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_BORDERS_ONLY)
        .set_header(header);
    table
}

/// The terminal of a running job: a queue, and a thread that writes. The reader of our output may
/// pause, and the launcher does not wait for it.
pub(crate) struct Screen {
    tag_output: bool,
    send: Sender<Queued>,
    backlog: Backlog,
    thread: JoinHandle<io::Result<()>>,
    /// Reaches its end when the thread has shown everything.
    done: PipeReader,
}

/// Something to show. It counts in the backlog until it is dropped: when it is shown, or when
/// nobody can show it any more.
struct Queued {
    shown: Shown,
    bytes: usize,
    backlog: Backlog,
}

impl Queued {
    fn new(shown: Shown, backlog: &Backlog) -> Self {
        let bytes = shown.bytes();
        backlog.add(bytes);
        Self {
            shown,
            bytes,
            backlog: backlog.clone(),
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.backlog.remove(self.bytes);
    }
}

enum Shown {
    Line { stream: Stream, text: Vec<u8> },
    Progress { name: Name, progress: Progress },
}

impl Shown {
    /// A note of the launcher itself.
    fn note(message: std::fmt::Arguments<'_>) -> Self {
        Shown::Line {
            stream: Stream::Stderr,
            text: noted(message).into_bytes(),
        }
    }

    /// An error that does not end the job.
    fn error(message: std::fmt::Arguments<'_>) -> Self {
        Shown::Line {
            stream: Stream::Stderr,
            text: warned(message).into_bytes(),
        }
    }

    /// Returns the bytes that it takes in the queue.
    fn bytes(&self) -> usize {
        const OWN: usize = 64;
        match self {
            Shown::Line { text, .. } => OWN + text.len(),
            Shown::Progress { progress, .. } => OWN + progress.note.as_ref().map_or(0, String::len),
        }
    }
}

impl Screen {
    pub(crate) fn start(tag_output: bool) -> anyhow::Result<Self> {
        let backlog = Backlog::new()?;
        let (send, queue) = channel();
        let (done, hold) = io::pipe().context("cannot watch the output")?;
        let show = move || {
            let mut terminal = Terminal::default();
            if is_quiet() {
                terminal.bars.set_draw_target(ProgressDrawTarget::hidden());
            }
            let result = terminal.show_all(queue);
            drop(hold);
            result
        };
        let thread = Builder::new().name("screen".to_owned()).spawn(show);
        Ok(Self {
            tag_output,
            send,
            backlog,
            thread: thread.context("cannot start the thread that shows the output")?,
            done,
        })
    }

    /// Returns what is not shown yet.
    pub(crate) fn backlog(&self) -> Backlog {
        self.backlog.clone()
    }

    pub(crate) fn show(&self, event: &Event<'_>) {
        let shown = match event {
            Event::Line(line) => {
                let line = Line {
                    prefix: line.prefix && self.tag_output,
                    ..*line
                };
                let mut text = Vec::new();
                // Writing to a vector cannot fail.
                let _ = line.write_to(&mut text);
                Shown::Line {
                    stream: line.stream,
                    text,
                }
            }
            Event::Progress { name, progress } => Shown::Progress {
                name: (*name).clone(),
                progress: progress.clone(),
            },
            Event::Ended {
                name,
                exit,
                again: true,
                ..
            } if !is_quiet() => Shown::note(format_args!("{name} {exit}, and is started again")),
            Event::Missed { name, exit, said } if !is_quiet() => {
                let said = said.last().map(|said| format!(": {said}"));
                Shown::note(format_args!(
                    "{name} {exit}, and the job goes on, because it is optional{}",
                    said.unwrap_or_default()
                ))
            }
            Event::OutputLost { name, path, error } => Shown::error(format_args!(
                "cannot write the output of {name} to {}: {error}; the job goes on, but nothing more is written to this file",
                path.display()
            )),
            _ => return,
        };
        // The thread has ended only if it panicked, which `close` reports. The units go on.
        let _ = self.send.send(Queued::new(shown, &self.backlog));
    }

    /// Waits until everything is shown, so that later output starts on a clean line. Returns the
    /// first error of writing it.
    ///
    /// # Errors
    /// [`Stalled`] on a signal that asks to end, or if it takes longer than `at_most` because the
    /// output is not read.
    pub(crate) fn close(
        self,
        interrupts: &Interrupts,
        at_most: Option<Duration>,
    ) -> Result<io::Result<()>, Stalled> {
        drop(self.send);
        let mut end = at_most.and_then(|time| Instant::now().checked_add(time));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [
                PollFd::new(&self.done, PollFlags::IN),
                PollFd::new(interrupts, PollFlags::IN),
            ];
            // On an error, such as one due to a signal, neither is ready.
            let _ = poll(&mut fds, timeout.as_ref());
            if !fds[0].revents().is_empty() {
                let panicked = |_| Err(io::Error::other("the thread that shows it panicked"));
                return Ok(self.thread.join().unwrap_or_else(panicked));
            }
            let before = Instant::now();
            let signal = interrupts.ask_to_end();
            if signal.is_some() || left.is_some_and(|left| left.is_zero()) {
                return Err(Stalled { signal });
            }
            // The time for which this process was stopped there (Ctrl-Z) does not count.
            end = end.and_then(|end| end.checked_add(before.elapsed()));
        }
    }
}

/// Not all output is shown, because it is not read.
pub(crate) struct Stalled {
    /// The signal that ended the wait, if it was one.
    pub(crate) signal: Option<i32>,
}

/// The state of the thread.
#[derive(Default)]
struct Terminal {
    bars: MultiProgress,
    programs: BTreeMap<String, ProgressBar>,
}

impl Terminal {
    /// Shows everything. Returns the first error, after which the job continues all the same.
    fn show_all(&mut self, queue: Receiver<Queued>) -> io::Result<()> {
        let mut result = Ok(());
        for queued in queue {
            match &queued.shown {
                Shown::Line { stream, text } => {
                    match self.bars.suspend(|| write(*stream, text)) {
                        // The reader of our output may have enough of it, as `head` has.
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                        printed => result = result.and(printed),
                    }
                }
                Shown::Progress { name, progress } => self.progress(name.program(), progress),
            }
        }
        for bar in self.programs.values() {
            bar.finish_and_clear();
        }
        result
    }

    /// Updates the bar of a program, which shows its most advanced unit.
    fn progress(&mut self, program: &str, progress: &Progress) {
        let bar = self.programs.entry(program.to_owned()).or_insert_with(|| {
            let bar = self.bars.add(ProgressBar::no_length());
            bar.set_prefix(program.to_owned());
            bar.set_style(style("{prefix:10} {pos} {wide_msg}"));
            bar
        });
        if let Some(steps) = progress.of.filter(|_| bar.length().is_none()) {
            bar.set_length(steps);
            bar.set_style(style("{prefix:10} {wide_bar} {pos}/{len} eta {eta} {msg}"));
        }
        bar.set_position(bar.position().max(progress.step));
        if let Some(note) = &progress.note {
            bar.set_message(note.clone());
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn write(stream: Stream, text: &[u8]) -> io::Result<()> {
    match stream {
        Stream::Stdout => {
            let mut out = io::stdout().lock();
            out.write_all(text)?;
            out.flush()
        }
        Stream::Stderr => io::stderr().lock().write_all(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    /// Shows a line of this many bytes.
    fn show(screen: &Screen, bytes: usize) {
        screen.show(&Event::Line(Line {
            name: &Name::unit("a", 0),
            stream: Stream::Stdout,
            prefix: false,
            text: &vec![b'x'; bytes],
            complete: true,
        }));
    }

    /// Returns true if the launcher is told that there is space again.
    fn is_told(screen: &Screen) -> bool {
        let backlog = screen.backlog();
        let mut fds = [PollFd::new(&backlog, PollFlags::IN)];
        let now = Timespec::default();
        poll(&mut fds, Some(&now)).expect("a socket") == 1
    }

    /// A screen whose thread does this with its queue.
    fn screen(thread: impl FnOnce(Receiver<Queued>) + Send + 'static) -> Screen {
        let (send, queue) = channel();
        let (done, hold) = io::pipe().expect("a pipe");
        let thread = move || {
            let _hold = hold;
            thread(queue);
            Ok(())
        };
        Screen {
            tag_output: false,
            send,
            backlog: Backlog::new().expect("descriptors"),
            thread: Builder::new().spawn(thread).expect("a thread"),
            done,
        }
    }

    /// The thread has panicked: units that print much are not stopped for a reader that is gone.
    #[test]
    fn output_that_nobody_shows_fills_no_queue() {
        let (gone, wait) = sync_channel::<()>(0);
        let screen = screen(move |queue| {
            drop(queue);
            drop(gone);
        });
        let _ = wait.recv();
        show(&screen, 5 << 20);
        assert!(is_told(&screen), "the launcher still waits for space");
    }

    /// It panics while much is in the queue.
    #[test]
    fn a_screen_that_panics_leaves_no_full_queue() {
        let (go_on, wait) = sync_channel::<()>(0);
        let screen = screen(move |queue| {
            let _ = wait.recv();
            let _first = queue.recv();
            panic!("as if a bar could not be drawn");
        });
        show(&screen, 1);
        show(&screen, 3 << 20);
        show(&screen, 3 << 20);
        assert!(!is_told(&screen));
        drop(go_on);
        // Its end closes the pipe after the queue.
        let mut fds = [PollFd::new(&screen.done, PollFlags::IN)];
        poll(&mut fds, None).expect("a pipe");
        assert!(is_told(&screen), "the launcher still waits for space");
        let interrupts = Interrupts::install().expect("descriptors");
        let shown = screen.close(&interrupts, None);
        assert!(matches!(shown, Ok(Err(_))), "the panic is an error");
    }

    #[test]
    fn names_do_not_move_the_cursor() {
        assert_eq!(printable("a\x1b[2J\nb"), "a\u{fffd}[2J\u{fffd}b");
        assert_eq!(printable("Größe 3"), "Größe 3");
    }
}
