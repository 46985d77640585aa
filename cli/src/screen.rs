//! What a person sees: sizes and tables, and while a job runs the lines of its units, and a bar for
//! each program that reports.

use anyhow::Context;
use bytesize::ByteSize;
use comfy_table::{Table, presets};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use samite_launch::{Backlog, Event, Interrupts, Line, Name, Progress, Stream};
use std::collections::BTreeMap;
use std::io::{self, PipeReader, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Nobody reads what a command prints any more (`samite doctor | head`): it has nothing left to do.
#[derive(Debug)]
pub(crate) struct NobodyReads;

impl std::fmt::Display for NobodyReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads the standard output")
    }
}

impl std::error::Error for NobodyReads {}

/// Prints, as every command does.
///
/// # Errors
/// [`NobodyReads`], with which a command ends without a word; an output that cannot be written.
pub(crate) fn say(text: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(NobodyReads.into()),
        result => result.context("cannot write to the standard output"),
    }
}

/// A size as people say it.
pub(crate) fn size(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// A table with this header, no lines inside.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_BORDERS_ONLY)
        .set_header(header);
    table
}

/// The terminal of a running job: a queue, and a thread that writes. Whoever reads our output may
/// pause, and the launcher does not wait for it.
pub(crate) struct Screen {
    tag_output: bool,
    send: Sender<Shown>,
    backlog: Backlog,
    /// At its end when the thread has shown everything.
    done: PipeReader,
}

/// Something to show.
enum Shown {
    Line { stream: Stream, text: Vec<u8> },
    Progress { name: Name, progress: Progress },
}

impl Shown {
    /// What it takes in the queue.
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
        std::thread::spawn(move || {
            Terminal::default().show_all(&queue, &shown);
            drop(hold);
        });
        Ok(Self {
            tag_output,
            send,
            backlog,
            done,
        })
    }

    /// What is not shown yet.
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
                // A vector takes everything.
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
            _ => return,
        };
        self.backlog.add(shown.bytes());
        // The thread is there as long as this is.
        let _ = self.send.send(shown);
    }

    /// Waits until everything is shown, and what comes next starts on a clean line. False if
    /// somebody signals meanwhile, or if it takes longer than `at_most`: nobody reads.
    pub(crate) fn close(self, interrupts: &Interrupts, at_most: Option<Duration>) -> bool {
        drop(self.send);
        let mut fds = [
            PollFd::new(&self.done, PollFlags::IN),
            PollFd::new(interrupts, PollFlags::IN),
        ];
        let at_most = at_most.and_then(|time| Timespec::try_from(time).ok());
        while let Err(rustix::io::Errno::INTR) = poll(&mut fds, at_most.as_ref()) {}
        !fds[0].revents().is_empty()
    }
}

/// What the thread has.
#[derive(Default)]
struct Terminal {
    bars: MultiProgress,
    programs: BTreeMap<String, ProgressBar>,
}

impl Terminal {
    fn show_all(&mut self, queue: &Receiver<Shown>, backlog: &Backlog) {
        for shown in queue {
            let bytes = shown.bytes();
            match &shown {
                Shown::Line { stream, text } => {
                    // Whoever reads our output may stop reading: the job goes on all the same.
                    let _ = self.bars.suspend(|| print(*stream, text));
                }
                Shown::Progress { name, progress } => self.progress(name.program(), progress),
            }
            backlog.remove(bytes);
        }
        for bar in self.programs.values() {
            bar.finish_and_clear();
        }
    }

    /// A program has one bar; of its units the one that is furthest moves it.
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
