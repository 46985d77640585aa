//! The program ffmpeg as a child process.
//!
//! Threads read its error output, so that ffmpeg never waits for a reader and the error can quote
//! the end, and what an encoder says of its progress. A child that is dropped before its end is
//! killed.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

use crate::Error;
use crate::partial::Encodes;

/// Bytes of the error output that are kept.
const KEPT: usize = 2048;

/// A running ffmpeg.
pub(crate) struct Ffmpeg {
    child: Child,
    words: Option<JoinHandle<String>>,
    /// Of an encoder: how many frames it has written, as far as it says.
    written: Option<JoinHandle<Option<u64>>>,
    doing: &'static str,
    path: PathBuf,
    /// Declared last: it ends when the child has been waited for.
    _encodes: Encodes,
}

/// Returns the command that decodes a file to a grey y4m stream on its standard output: each frame
/// once, whatever their times are. It ends with an error at the first damaged frame.
pub(crate) fn decoder(path: &Path) -> Command {
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-nostdin", "-xerror", "-i"]);
    command.arg(named(path));
    command.args(["-fps_mode", "passthrough"]);
    command.args(["-f", "yuv4mpegpipe", "-pix_fmt", "gray", "-"]);
    command
}

/// Returns the command that encodes the y4m stream on its standard input to a file: each frame
/// once, though the format may have other frame rates. The ending of its name chooses the format.
/// The standard output says how far it is.
pub(crate) fn encoder(path: &Path) -> Command {
    let mut command = Command::new("ffmpeg");
    command.args([
        "-v",
        "error",
        "-xerror",
        "-y",
        "-progress",
        "pipe:1",
        "-f",
        "yuv4mpegpipe",
        "-i",
        "-",
    ]);
    command.args(["-fps_mode", "passthrough"]);
    command.arg(named(path));
    command
}

/// Returns the argument for a file. The prefix keeps ffmpeg from taking the name for an option or
/// an address.
fn named(path: &Path) -> std::ffi::OsString {
    let mut argument = std::ffi::OsString::from("file:");
    argument.push(path);
    argument
}

impl Ffmpeg {
    /// Starts a decoder of `path` and returns its output.
    pub(crate) fn decode(command: Command, path: &Path) -> Result<(Self, ChildStdout), Error> {
        let mut ffmpeg = Self::start(command, Stdio::null(), Stdio::piped(), "decode", path)?;
        let output = ffmpeg.child.stdout.take().expect("was piped");
        Ok((ffmpeg, output))
    }

    /// Starts an encoder of `path` and returns its input.
    pub(crate) fn encode(command: Command, path: &Path) -> Result<(Self, ChildStdin), Error> {
        let mut ffmpeg = Self::start(command, Stdio::piped(), Stdio::piped(), "encode", path)?;
        let input = ffmpeg.child.stdin.take().expect("was piped");
        let output = ffmpeg.child.stdout.take().expect("was piped");
        ffmpeg.written = Some(std::thread::spawn(|| last_count(output)));
        Ok((ffmpeg, input))
    }

    fn start(
        mut command: Command,
        input: Stdio,
        output: Stdio,
        doing: &'static str,
        path: &Path,
    ) -> Result<Self, Error> {
        command.stdin(input).stdout(output).stderr(Stdio::piped());
        let started = match doing {
            "encode" => Encodes::start(command),
            _ => Encodes::start_other(command),
        };
        let (mut child, encodes) = started.map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::FfmpegMissing,
            _ => Error::FfmpegStart(error),
        })?;
        let errors = child.stderr.take().expect("was piped");
        Ok(Self {
            child,
            words: Some(std::thread::spawn(|| last_words(errors))),
            written: None,
            doing,
            path: path.to_path_buf(),
            _encodes: encodes,
        })
    }

    /// Waits for the end and fails with [`Error::FfmpegFailed`] unless it was a success. A decoder
    /// that has printed an error has failed: it takes a file that ends early for a whole one. An
    /// encoder that has written more or fewer than `frames` has failed, too. The caller has read
    /// the output to its end, or closed the input.
    pub(crate) fn finish(mut self, frames: u64) -> Result<(), Error> {
        let status = self.child.wait().map_err(Error::FfmpegWait)?;
        let words = self.words.take().map(JoinHandle::join);
        let words = words.and_then(Result::ok).filter(|words| !words.is_empty());
        let written = self.written.take().map(JoinHandle::join);
        let written = written.and_then(Result::ok).flatten();
        if status.success() && (self.doing == "encode" || words.is_none()) {
            return match written {
                Some(written) if written != frames => Err(Error::FfmpegFrames {
                    path: self.path.clone(),
                    written,
                    frames,
                }),
                _ => Ok(()),
            };
        }
        Err(Error::FfmpegFailed {
            doing: self.doing,
            path: self.path.clone(),
            status: status.to_string(),
            frames,
            words: words.unwrap_or_else(|| "it printed no reason".to_owned()),
        })
    }
}

impl Drop for Ffmpeg {
    fn drop(&mut self) {
        // Both fail only if the process has already ended and been waited for.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Reads to the end and returns the number of frames that an encoder has said last.
fn last_count(output: ChildStdout) -> Option<u64> {
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    let counts = lines.filter_map(|line| line.strip_prefix("frame=")?.trim().parse().ok());
    counts.last()
}

/// Reads to the end and returns the last bytes as text.
fn last_words(mut errors: ChildStderr) -> String {
    let mut kept = Vec::new();
    let mut piece = [0; KEPT];
    while let Ok(count @ 1..) = errors.read(&mut piece) {
        kept.extend_from_slice(&piece[..count]);
        let excess = kept.len().saturating_sub(KEPT);
        kept.drain(..excess);
    }
    String::from_utf8_lossy(&kept).trim().replace('\n', "; ")
}
