//! Where frames come from.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};

use crate::ffmpeg::{self, Ffmpeg};
use crate::y4m::{Rate, Reader};
use crate::{Error, Frame, Generator, Size};

/// A source of frames, as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Frames made by [`Generator`].
    Generator {
        /// Size of the frames.
        size: Size,
        /// Number of frames.
        frames: u64,
        /// Seed of their content.
        seed: u64,
    },
    /// A file in the format y4m.
    Y4m(PathBuf),
    /// A video of any format, decoded by the program ffmpeg.
    Ffmpeg(PathBuf),
}

/// An open source. Frames are read in order, from 0.
pub struct Input {
    kind: Kind,
    /// The file that is read.
    path: Option<PathBuf>,
}

enum Kind {
    Generator {
        generator: Generator,
        size: Size,
        frames: u64,
        next: u64,
    },
    Stream(Reader<Box<dyn Read + Send>>),
    Ffmpeg(Decoder),
}

impl Source {
    /// Opens the source. A stream has been read up to its first frame.
    pub fn open(&self) -> Result<Input, Error> {
        let path = match self {
            Source::Generator { .. } => None,
            Source::Y4m(path) | Source::Ffmpeg(path) => Some(path.clone()),
        };
        match self.open_kind() {
            Ok(kind) => Ok(Input { kind, path }),
            Err(error) => Err(error.of_input(path.as_deref())),
        }
    }

    fn open_kind(&self) -> Result<Kind, Error> {
        let stream = |from: Box<dyn Read + Send>| Reader::new(from).map(Kind::Stream);
        Ok(match self {
            &Source::Generator { size, frames, seed } => Kind::Generator {
                generator: Generator::new(size, seed),
                size,
                frames,
                next: 0,
            },
            Source::Y4m(path) => stream(Box::new(open(path)?))?,
            Source::Ffmpeg(path) => {
                // A sentence about the file is better than one about ffmpeg.
                drop(open(path)?);
                Kind::Ffmpeg(Decoder::start(ffmpeg::decoder(path), path)?)
            }
        })
    }
}

fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| Error::File {
        path: path.to_path_buf(),
        doing: "opened",
        source,
    })
}

impl Input {
    /// The size of all frames.
    pub fn size(&self) -> Size {
        match &self.kind {
            Kind::Generator { size, .. } => *size,
            Kind::Stream(reader) => reader.size(),
            Kind::Ffmpeg(decoder) => decoder.reader.size(),
        }
    }

    /// The frame rate.
    pub fn rate(&self) -> Rate {
        match &self.kind {
            Kind::Generator { .. } => Rate::default(),
            Kind::Stream(reader) => reader.rate(),
            Kind::Ffmpeg(decoder) => decoder.reader.rate(),
        }
    }

    /// Returns how many frames are still to be read, if that is known.
    pub fn left(&self) -> Option<u64> {
        match &self.kind {
            Kind::Generator { frames, next, .. } => Some(frames - next),
            Kind::Stream(_) | Kind::Ffmpeg(_) => None,
        }
    }

    /// Reads the next frame into `frame`, whose memory is used again. Returns false after the last
    /// frame of a complete source; a source that ended early is an error.
    pub fn read(&mut self, frame: &mut Frame) -> Result<bool, Error> {
        let read = match &mut self.kind {
            Kind::Generator { frames, next, .. } if next == frames => Ok(false),
            Kind::Generator {
                generator, next, ..
            } => {
                generator.make(*next, frame);
                *next += 1;
                Ok(true)
            }
            Kind::Stream(reader) => reader.read(frame),
            Kind::Ffmpeg(decoder) => decoder.read(frame),
        };
        read.map_err(|error| error.of_input(self.path.as_deref()))
    }
}

/// A stream from ffmpeg.
struct Decoder {
    reader: Reader<ChildStdout>,
    /// None after its end.
    ffmpeg: Option<Ffmpeg>,
    frames: u64,
}

impl Decoder {
    fn start(command: Command, path: &Path) -> Result<Self, Error> {
        let (ffmpeg, output) = Ffmpeg::decode(command, path)?;
        match Reader::new(output) {
            Ok(reader) => Ok(Self {
                reader,
                ffmpeg: Some(ffmpeg),
                frames: 0,
            }),
            // No stream: the failure of ffmpeg is the cause, so its error comes first. `new` has
            // dropped the output, and ffmpeg ends at its next write.
            Err(error @ (Error::NotY4m | Error::Read { .. })) => {
                Err(ffmpeg.finish(0).err().unwrap_or(error))
            }
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, frame: &mut Frame) -> Result<bool, Error> {
        let result = match &self.ffmpeg {
            Some(_) => self.reader.read(frame),
            None => return Ok(false),
        };
        match result {
            Ok(true) => self.frames += 1,
            // The output has ended, so ffmpeg ends, too.
            Ok(false) | Err(Error::Truncated { .. }) => {
                if let Some(ffmpeg) = self.ffmpeg.take() {
                    ffmpeg.finish(self.frames)?;
                }
            }
            Err(_) => self.ffmpeg = None,
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads everything from a shell that plays ffmpeg.
    fn read_from(script: &str) -> Result<u64, Error> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut decoder = Decoder::start(command, Path::new("clip.mkv"))?;
        let mut frame = Frame::black(decoder.reader.size());
        while decoder.read(&mut frame)? {}
        assert!(!decoder.read(&mut frame)?);
        Ok(decoder.frames)
    }

    #[test]
    fn a_decoder_that_fails_is_an_error() {
        let frames = r"printf 'YUV4MPEG2 W2 H1 Cmono\nFRAME\n12FRAME\n34'";
        assert_eq!(read_from(frames).unwrap(), 2);
        let wide = r"printf 'YUV4MPEG2 W99999 H1 Cmono\n'; sleep 60 & wait";
        let error = read_from(wide).unwrap_err();
        assert!(matches!(error, Error::FrameSize { .. }), "{error}");
        for (script, count) in [
            (format!("{frames}; echo bad clip, ended early >&2"), 2),
            ("echo bad clip >&2; exit 3".to_owned(), 0),
            (format!("{frames}; echo bad clip >&2; exit 3"), 2),
            (
                format!("{frames}; printf FRA; echo bad clip >&2; exit 3"),
                2,
            ),
        ] {
            let error = read_from(&script).unwrap_err();
            let sentence = error.to_string();
            assert!(
                matches!(error, Error::FfmpegFailed { frames, .. } if frames == count),
                "{sentence}"
            );
            assert!(sentence.contains("bad clip"), "{sentence}");
        }
        let error = read_from(&format!("{frames}; kill -9 $$")).unwrap_err();
        assert!(matches!(error, Error::FfmpegFailed { .. }), "{error}");
        let error = read_from(&format!("{frames}; printf 'FRAME\\n5'")).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Truncated {
                    frame: 2,
                    got: 1,
                    expected: 2
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_missing_program_is_named() {
        let command = Command::new("samite-no-such-program");
        let error = Decoder::start(command, Path::new("clip.mkv")).err();
        assert!(matches!(error, Some(Error::FfmpegMissing)));
    }

    #[test]
    fn a_decoder_that_is_dropped_is_killed() {
        let mut command = Command::new("sh");
        let script = r"printf 'YUV4MPEG2 W1 H1 Cmono\n'; while :; do printf 'FRAME\n1'; done";
        command.args(["-c", script]);
        let mut decoder = Decoder::start(command, Path::new("endless.mkv")).unwrap();
        let mut frame = Frame::black(decoder.reader.size());
        assert!(decoder.read(&mut frame).unwrap());
        // Returns only when the child has ended.
        drop(decoder);
    }
}
