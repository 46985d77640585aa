use std::path::{Path, PathBuf};

use crate::frame::MAX_SIDE;

/// Errors of sources and sinks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The stream does not begin like a YUV4MPEG2 stream.
    #[error("the input is not a y4m stream: it does not begin with a line `YUV4MPEG2 …`")]
    NotY4m,
    /// The header of the stream has no usable width or height.
    #[error("the header of the y4m stream has no valid width and height: it needs `W…` and `H…`")]
    NoSize,
    /// The frame rate in the header is not a ratio of two numbers.
    #[error("the header of the y4m stream has the frame rate `{rate}`; expected a ratio like 25:1")]
    Rate {
        /// The field of the header, without its letter.
        rate: String,
    },
    /// The colour space of the stream is not among those that the reader knows.
    #[error(
        "the y4m stream has the colour space `{colour}`, which is not supported: convert it to mono, 420, 422 or 444 with 8 bits"
    )]
    Colour {
        /// The field of the header, without its letter.
        colour: String,
    },
    /// The frames are empty or exceed the limit.
    #[error(
        "frames of {width} x {height} pixels are not supported: use 1 x 1 to {MAX_SIDE} x {MAX_SIDE}"
    )]
    FrameSize {
        /// Requested width.
        width: u64,
        /// Requested height.
        height: u64,
    },
    /// A frame does not begin with its marker.
    #[error(
        "frame {frame} of the y4m stream does not begin with a line `FRAME`: the stream is damaged"
    )]
    Marker {
        /// Number of the frame.
        frame: u64,
    },
    /// The stream ends within a frame.
    #[error("the y4m stream is truncated: frame {frame} has {got} of its {expected} bytes")]
    Truncated {
        /// Number of the frame.
        frame: u64,
        /// Bytes of the frame that arrived.
        got: usize,
        /// Bytes of a complete frame.
        expected: usize,
    },
    /// The system failed while a frame was read.
    #[error("frame {frame} could not be read")]
    Read {
        /// Number of the frame.
        frame: u64,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The system failed while a frame was written.
    #[error("frame {frame} could not be written{}", remedy(source))]
    Write {
        /// Number of the frame.
        frame: u64,
        /// The error of the system.
        source: std::io::Error,
    },
    /// What is read from a file is no complete video.
    #[error("{} could not be read", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// A frame could not be written to a file.
    #[error("{} could not be written", path.display())]
    Written {
        /// The file.
        path: PathBuf,
        /// What has failed.
        source: Box<Error>,
    },
    /// A file could not be opened, created or renamed.
    #[error("{} could not be {doing}{}", path.display(), remedy(source))]
    File {
        /// The file.
        path: PathBuf,
        /// The operation: "opened", "created", "completed", "read", "written".
        doing: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The output is no complete file.
    #[error("{} cannot be the output: {why}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The program ffmpeg is not installed.
    #[error(
        "ffmpeg is not installed: install it (on Debian, the package ffmpeg), or use y4m files"
    )]
    FfmpegMissing,
    /// The program ffmpeg could not be started.
    #[error("ffmpeg could not be started")]
    FfmpegStart(#[source] std::io::Error),
    /// How the program ffmpeg ended is not known.
    #[error("the system does not say how ffmpeg has ended")]
    FfmpegWait(#[source] std::io::Error),
    /// The program ffmpeg ended with an error.
    #[error(
        "ffmpeg could not {doing} {} and ended with {status} after {frames} frames: {words}",
        path.display()
    )]
    FfmpegFailed {
        /// The operation: "decode", "encode".
        doing: &'static str,
        /// The file that ffmpeg read or wrote.
        path: PathBuf,
        /// How the process ended.
        status: String,
        /// Frames that it gave or took before.
        frames: u64,
        /// The end of its error output.
        words: String,
    },
    /// The program ffmpeg has left out frames, or written some twice.
    #[error(
        "ffmpeg has written {written} instead of {frames} frames to {}: use another format, such as .mkv",
        path.display()
    )]
    FfmpegFrames {
        /// The file.
        path: PathBuf,
        /// Frames in the file.
        written: u64,
        /// Frames that it was given.
        frames: u64,
    },
}

impl Error {
    /// Adds the file that was read, if the error does not name it.
    pub(crate) fn of_input(self, path: Option<&Path>) -> Error {
        match (path, self.names_no_file()) {
            (Some(path), true) => Error::Input {
                path: path.to_path_buf(),
                source: Box::new(self),
            },
            _ => self,
        }
    }

    /// Adds the file that was written, if the error does not name it.
    pub(crate) fn of_output(self, path: Option<&Path>) -> Error {
        match (path, self.names_no_file()) {
            (Some(path), true) => Error::Written {
                path: path.to_path_buf(),
                source: Box::new(self),
            },
            _ => self,
        }
    }

    /// Whether it is of a stream, which has no name.
    fn names_no_file(&self) -> bool {
        matches!(
            self,
            Error::NotY4m
                | Error::NoSize
                | Error::Rate { .. }
                | Error::Colour { .. }
                | Error::FrameSize { .. }
                | Error::Marker { .. }
                | Error::Truncated { .. }
                | Error::Read { .. }
                | Error::Write { .. }
        )
    }
}

/// Returns what the user can do about an error of the system, to be appended to its sentence.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::StorageFull => "; free some space, or write to another disk",
        _ => "",
    }
}
