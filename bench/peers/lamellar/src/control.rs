//! The control lines of the benches, as in `peer.h`.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

/// A rank's fifos.
pub struct Control {
    commands: BufReader<File>,
    answers: Option<File>,
}

impl Control {
    pub fn open(folder: &Path, rank: usize) -> std::io::Result<Control> {
        let commands = BufReader::new(File::open(folder.join(format!("ctl.{rank}")))?);
        let answers = match rank {
            0 => Some(OpenOptions::new().write(true).open(folder.join("out"))?),
            _ => None,
        };
        Ok(Control { commands, answers })
    }

    /// Blocks in `read()` until the next command; `None` at the end.
    pub fn next(&mut self) -> Option<Vec<String>> {
        let mut line = String::new();
        let read = self.commands.read_line(&mut line).unwrap_or(0);
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        (read > 0 && line.trim() != "quit").then_some(words)
    }

    /// Rank 0 answers; the others have nothing to say.
    pub fn answer(&mut self, text: &str) {
        if let Some(answers) = &mut self.answers {
            // The bench hears of a broken fifo by the end of this process.
            let _ = writeln!(answers, "{text}");
        }
    }
}
