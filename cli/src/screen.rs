//! What a person sees: sizes and tables, and while a job runs the lines of its units, and a bar for each program that
//! reports.

use anyhow::Context;
use bytesize::ByteSize;
use comfy_table::{Table, presets};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use samite_launch::{Event, Line, Progress, Stream};
use std::collections::BTreeMap;
use std::io::{self, Write};

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
        result => result.context("the standard output could not be written"),
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

/// The terminal of a running job.
pub(crate) struct Screen {
    tag_output: bool,
    bars: MultiProgress,
    programs: BTreeMap<String, ProgressBar>,
}

impl Screen {
    pub(crate) fn new(tag_output: bool) -> Self {
        Self {
            tag_output,
            bars: MultiProgress::new(),
            programs: BTreeMap::new(),
        }
    }

    pub(crate) fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Line(line) => {
                let line = Line {
                    prefix: line.prefix && self.tag_output,
                    ..*line
                };
                // Whoever reads our output may stop reading: the job goes on all the same.
                let _ = self.bars.suspend(|| print(&line));
            }
            Event::Progress { name, progress } => self.progress(name.program(), progress),
            _ => {}
        }
    }

    /// Takes the bars away, so that what comes next starts on a clean line.
    pub(crate) fn close(&self) {
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

fn print(line: &Line<'_>) -> io::Result<()> {
    match line.stream {
        Stream::Stdout => {
            let mut out = io::stdout().lock();
            line.write_to(&mut out)?;
            out.flush()
        }
        Stream::Stderr => line.write_to(&mut io::stderr().lock()),
    }
}
