//! Output for people: sizes, tables, and for a running job the lines of its units and a bar for
//! each program that reports progress.

use crate::style::{Out, is_quiet, paint};
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

/// Prints an error on standard error. If it cannot be written there, no place is left for it.
pub(crate) fn warn(message: std::fmt::Arguments<'_>) {
    let name = paint(Out::Stderr, AnsiColor::Red, "samite:");
    let _ = writeln!(io::stderr(), "{name} {message}");
}

/// Prints a note on standard error, unless the user wants none (`--quiet`).
pub(crate) fn note(message: std::fmt::Arguments<'_>) {
    if !is_quiet() {
        let name = paint(Out::Stderr, AnsiColor::Yellow, "samite:");
        let _ = writeln!(io::stderr(), "{name} {message}");
    }
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
    send: Sender<Shown>,
    backlog: Backlog,
    thread: JoinHandle<io::Result<()>>,
    /// Reaches its end when the thread has shown everything.
    done: PipeReader,
}

/// Something to show.
enum Shown {
    Line { stream: Stream, text: Vec<u8> },
    Progress { name: Name, progress: Progress },
}

impl Shown {
    /// A message of the launcher itself.
    fn own(message: std::fmt::Arguments<'_>) -> Self {
        Shown::Line {
            stream: Stream::Stderr,
            text: format!("samite: {message}\n").into_bytes(),
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
        let shown = backlog.clone();
        let show = move || {
            let mut terminal = Terminal::default();
            if is_quiet() {
                terminal.bars.set_draw_target(ProgressDrawTarget::hidden());
            }
            let result = terminal.show_all(&queue, &shown);
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
            } => Shown::own(format_args!("{name} {exit}, and is started again")),
            Event::Missed { name, exit, said } => {
                let said = said.last().map_or("", String::as_str);
                Shown::own(format_args!(
                    "{name} {exit}, and the job goes on, because it is optional: {said}"
                ))
            }
            Event::OutputLost { name, path, error } => Shown::own(format_args!(
                "cannot write the output of {name} to {}: {error}; the job goes on, but nothing more is written to this file",
                path.display()
            )),
            _ => return,
        };
        let bytes = shown.bytes();
        self.backlog.add(bytes);
        // The thread has ended only if it panicked, which `close` reports. The units go on.
        if self.send.send(shown).is_err() {
            self.backlog.remove(bytes);
        }
    }

    /// Waits until everything is shown, so that later output starts on a clean line. Returns the
    /// first error of writing it, or `None` on a signal that asks to end, or if it takes longer
    /// than `at_most` because the output is not read.
    pub(crate) fn close(
        self,
        interrupts: &Interrupts,
        at_most: Option<Duration>,
    ) -> Option<io::Result<()>> {
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
                return Some(self.thread.join().unwrap_or_else(panicked));
            }
            let before = Instant::now();
            if interrupts.ask_to_end() || left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            // The time for which this process was stopped there (Ctrl-Z) does not count.
            end = end.and_then(|end| end.checked_add(before.elapsed()));
        }
    }
}

/// The state of the thread.
#[derive(Default)]
struct Terminal {
    bars: MultiProgress,
    programs: BTreeMap<String, ProgressBar>,
}

impl Terminal {
    /// Shows everything. Returns the first error, after which the job continues all the same.
    fn show_all(&mut self, queue: &Receiver<Shown>, backlog: &Backlog) -> io::Result<()> {
        let mut result = Ok(());
        for shown in queue {
            let bytes = shown.bytes();
            match &shown {
                Shown::Line { stream, text } => {
                    match self.bars.suspend(|| print(*stream, text)) {
                        // The reader of our output may have enough of it, as `head` has.
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                        printed => result = result.and(printed),
                    }
                }
                Shown::Progress { name, progress } => self.progress(name.program(), progress),
            }
            backlog.remove(bytes);
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

fn print(stream: Stream, text: &[u8]) -> io::Result<()> {
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

    /// The thread has panicked: units that print much are not stopped for a reader that is gone.
    #[test]
    fn output_that_nobody_shows_fills_no_queue() {
        let (send, queue) = channel();
        drop(queue);
        let (done, _) = io::pipe().expect("a pipe");
        let screen = Screen {
            tag_output: false,
            send,
            backlog: Backlog::new().expect("descriptors"),
            thread: Builder::new().spawn(|| Ok(())).expect("a thread"),
            done,
        };
        let long = vec![b'x'; 5 << 20];
        screen.show(&Event::Line(Line {
            name: &Name::unit("a", 0),
            stream: Stream::Stdout,
            prefix: false,
            text: &long,
            complete: true,
        }));
        let backlog = screen.backlog();
        let mut fds = [PollFd::new(&backlog, PollFlags::IN)];
        let now = Timespec::default();
        let told = poll(&mut fds, Some(&now)).expect("a socket");
        assert_eq!(told, 1, "the launcher still waits until there is space");
    }
}
