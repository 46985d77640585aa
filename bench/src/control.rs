//! The rank's side of the control protocol (see the crate's documentation).

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

/// A rank's fifos.
#[derive(Debug)]
pub(crate) struct Control {
    commands: BufReader<File>,
    answers: Option<File>,
}

/// A command and its arguments.
#[derive(Debug)]
pub(crate) struct Command {
    words: Vec<String>,
}

impl Control {
    /// Opens the fifos of `rank` in the control folder.
    pub(crate) fn open(folder: &Path, rank: u32) -> Result<Control> {
        let path = folder.join(format!("ctl.{rank}"));
        let commands =
            File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let answers = match rank {
            0 => Some(OpenOptions::new().write(true).open(folder.join("out"))?),
            _ => None,
        };
        Ok(Control {
            commands: BufReader::new(commands),
            answers,
        })
    }

    /// Blocks in `read()` until the next command; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Command>> {
        let mut line = String::new();
        if self.commands.read_line(&mut line)? == 0 || line.trim() == "quit" {
            return Ok(None);
        }
        Ok(Some(Command::of(&line)))
    }

    /// Sends an answer from rank 0; does nothing at the others.
    pub(crate) fn answer(&mut self, text: &str) -> Result<()> {
        if let Some(answers) = &mut self.answers {
            writeln!(answers, "{text}")?;
            answers.flush()?;
        }
        Ok(())
    }

    /// Answers with a number, or `unsupported`. There is no answer to a command that failed: the
    /// rank ends with its error, and with it the job, whichever rank it is.
    pub(crate) fn answer_value(&mut self, value: Option<f64>) -> Result<()> {
        match value {
            Some(value) => self.answer(&format!("{value:.12e}")),
            None => self.answer("unsupported"),
        }
    }
}

impl Command {
    /// Parses a line.
    pub(crate) fn of(line: &str) -> Command {
        Command {
            words: line.split_whitespace().map(str::to_owned).collect(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    pub(crate) fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    /// Returns all words of the line from `index` on.
    pub(crate) fn words_from(&self, index: usize) -> impl Iterator<Item = &str> {
        self.words.iter().skip(index).map(String::as_str)
    }

    /// Returns the number at a position of the line.
    pub(crate) fn number(&self, index: usize) -> Result<u64> {
        let Some(word) = self.words.get(index) else {
            bail!("{:?} lacks a number", self.words)
        };
        word.parse()
            .with_context(|| format!("{word} is not a number"))
    }

    /// Returns the seconds at a position of the line.
    pub(crate) fn seconds(&self, index: usize) -> Result<f64> {
        self.word(index)
            .parse()
            .with_context(|| format!("{} is not a time", self.word(index)))
    }
}

/// Pins this process to the entry of its rank in `SAMITE_BENCH_CPUS`, if it is set.
pub(crate) fn pin(rank: u32) -> Result<()> {
    let Ok(list) = std::env::var("SAMITE_BENCH_CPUS") else {
        return Ok(());
    };
    let cpus: Vec<usize> = list
        .split(',')
        .filter_map(|cpu| cpu.trim().parse().ok())
        .collect();
    let Some(cpu) = cpus.get(rank as usize % cpus.len().max(1)) else {
        return Ok(());
    };
    let mut set = rustix::thread::CpuSet::new();
    set.set(*cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .with_context(|| format!("cannot pin to core {cpu}"))
}
