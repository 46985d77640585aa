//! Where frames go.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};

use crate::ffmpeg::{self, Ffmpeg};
use crate::partial::Partial;
use crate::y4m::{Rate, Writer};
use crate::{Checksum, Error, Frame, Size};

/// A sink of frames, as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// The checksum of all frames.
    Checksum,
    /// A file in the format y4m.
    Y4m(PathBuf),
    /// A file that the program ffmpeg encodes; the ending of its name chooses the format.
    Ffmpeg(PathBuf),
    /// Nothing: measures everything except the output.
    Nothing,
}

/// An open sink. It takes frames in order, from 0. If it is dropped before [`Output::finish`], its
/// file is removed.
pub struct Output {
    kind: Kind,
    size: Size,
    frames: u64,
    /// Declared after `kind`, so that the file is closed before it is removed.
    partial: Option<Partial>,
}

enum Kind {
    Checksum(Box<Checksum>),
    Y4m(Writer<BufWriter<File>>),
    Ffmpeg(Encoder),
    Nothing,
}

impl Sink {
    /// Opens the sink for frames of one size. An existing file is replaced when the output is
    /// complete.
    pub fn open(&self, size: Size, rate: Rate) -> Result<Output, Error> {
        let path = match self {
            Sink::Checksum | Sink::Nothing => None,
            Sink::Y4m(path) | Sink::Ffmpeg(path) => Some(&**path),
        };
        let output = self.open_unnamed(size, rate);
        output.map_err(|error| error.of_output(path))
    }

    fn open_unnamed(&self, size: Size, rate: Rate) -> Result<Output, Error> {
        let mut partial = None;
        let kind = match self {
            Sink::Checksum => Kind::Checksum(Box::default()),
            Sink::Nothing => Kind::Nothing,
            Sink::Y4m(path) => {
                let partial = partial.insert(Partial::new(path));
                let file = partial.create()?;
                Kind::Y4m(Writer::new(BufWriter::new(file), size, rate)?)
            }
            Sink::Ffmpeg(path) => {
                is_one_file(path)?;
                let partial = partial.insert(Partial::new(path));
                // A sentence about the file is better than one about ffmpeg.
                drop(partial.create()?);
                let command = ffmpeg::encoder(partial.written());
                Kind::Ffmpeg(Encoder::start(command, path, size, rate)?)
            }
        };
        Ok(Output {
            kind,
            size,
            frames: 0,
            partial,
        })
    }
}

impl Output {
    /// Takes the next frame. Panics if it is not the next one or has another size.
    pub fn write(&mut self, frame: &Frame) -> Result<(), Error> {
        assert_eq!(frame.number, self.frames, "frames must come in order");
        assert_eq!(frame.size, self.size, "all frames must have one size");
        let written = match &mut self.kind {
            Kind::Checksum(checksum) => {
                checksum.add(frame);
                Ok(())
            }
            Kind::Y4m(writer) => writer.write(frame),
            Kind::Ffmpeg(encoder) => encoder.write(frame),
            Kind::Nothing => Ok(()),
        };
        let path = self.partial.as_ref().map(Partial::path);
        written.map_err(|error| error.of_output(path))?;
        self.frames += 1;
        Ok(())
    }

    /// Completes the output: a file gets its name. Returns the checksum if the sink is one.
    pub fn finish(self) -> Result<Option<u64>, Error> {
        let (checksum, partial) = self.end()?;
        if let Some(partial) = partial {
            partial.complete()?;
        }
        Ok(checksum)
    }

    /// Writes all that is left. Returns the checksum if the sink is one, and the file, which has
    /// not got its name yet.
    pub(crate) fn end(self) -> Result<(Option<u64>, Option<Partial>), Error> {
        let checksum = match self.kind {
            Kind::Checksum(checksum) => Some(checksum.value()),
            Kind::Y4m(writer) => {
                // The last frame may still be in the buffer.
                let frame = self.frames.saturating_sub(1);
                let flushed = writer.into_inner().flush();
                let path = self.partial.as_ref().map(Partial::path);
                flushed.map_err(|source| Error::Write { frame, source }.of_output(path))?;
                None
            }
            Kind::Ffmpeg(encoder) => {
                encoder.finish(self.frames)?;
                if let Some(partial) = &self.partial {
                    partial.is_written()?;
                }
                None
            }
            Kind::Nothing => None,
        };
        Ok((checksum, self.partial))
    }
}

/// Refuses names for which ffmpeg writes several files, which would not be complete together.
fn is_one_file(path: &Path) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    let why = match &*ending.to_ascii_lowercase() {
        "m3u8" | "mpd" | "ism" | "f4m" | "ffconcat" => "ffmpeg writes several files for it",
        _ if name.contains('%') => "ffmpeg takes `%` for the number of a picture",
        _ => return Ok(()),
    };
    Err(Error::Output {
        path: path.to_path_buf(),
        why,
    })
}

/// A stream to ffmpeg.
struct Encoder {
    /// None after ffmpeg has closed its input.
    writer: Option<Writer<ChildStdin>>,
    ffmpeg: Option<Ffmpeg>,
}

impl Encoder {
    fn start(command: Command, path: &Path, size: Size, rate: Rate) -> Result<Self, Error> {
        let (ffmpeg, input) = Ffmpeg::encode(command, path)?;
        match Writer::new(input, size, rate) {
            Ok(writer) => Ok(Self {
                writer: Some(writer),
                ffmpeg: Some(ffmpeg),
            }),
            // The failure of ffmpeg is the cause, so its error comes first. `new` has dropped the
            // input, so ffmpeg ends.
            Err(error) => Err(ffmpeg.finish(0).err().unwrap_or(error)),
        }
    }

    fn write(&mut self, frame: &Frame) -> Result<(), Error> {
        let writer = self.writer.as_mut().expect("no frame after a failed one");
        let written = writer.write(frame);
        if written.is_err() {
            self.writer = None;
            if let Some(ffmpeg) = self.ffmpeg.take() {
                ffmpeg.finish(frame.number)?;
            }
        }
        written
    }

    fn finish(mut self, frames: u64) -> Result<(), Error> {
        self.writer = None;
        match self.ffmpeg.take() {
            Some(ffmpeg) => ffmpeg.finish(frames),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    fn size() -> Size {
        Size::new(160, 120).unwrap()
    }

    fn encode_by(script: &str) -> Result<(), Error> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let path = Path::new("clip.mkv");
        let mut encoder = Encoder::start(command, path, size(), Rate::default())?;
        let mut frame = Frame::black(size());
        for number in 0..20 {
            frame.number = number;
            encoder.write(&frame)?;
        }
        encoder.finish(20)
    }

    #[test]
    fn an_encoder_that_fails_is_an_error() {
        encode_by("cat > /dev/null").unwrap();
        for script in [
            "echo no codec >&2; exit 1",
            "head -c 50000 > /dev/null; echo no codec >&2; exit 1",
            "cat > /dev/null; echo no codec >&2; exit 1",
        ] {
            let error = encode_by(script).unwrap_err();
            assert!(matches!(error, Error::FfmpegFailed { .. }), "{error}");
            assert!(error.to_string().contains("no codec"), "{error}");
        }
        encode_by("echo frame=0; cat > /dev/null; echo frame=20; echo progress=end").unwrap();
        let error = encode_by("cat > /dev/null; echo frame=20; echo 'frame= 19'").unwrap_err();
        assert!(
            matches!(
                error,
                Error::FfmpegFrames {
                    written: 19,
                    frames: 20,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn an_output_is_one_file() {
        for (name, is_one) in [
            ("frames%03d.png", false),
            ("stream.M3U8", false),
            ("50%/clip.mkv", true),
            ("clip.mkv", true),
        ] {
            assert_eq!(is_one_file(Path::new(name)).is_ok(), is_one, "{name}");
        }
        let folder = tempfile::tempdir().unwrap();
        let mut partial = Partial::new(&folder.path().join("clip.mkv"));
        drop(partial.create().unwrap());
        let error = partial.is_written().unwrap_err().to_string();
        assert!(
            error.contains("clip.mkv") && error.contains("empty"),
            "{error}"
        );
        std::fs::write(partial.written(), "frames").unwrap();
        partial.is_written().unwrap();
    }

    #[test]
    fn a_full_disk_is_an_error() {
        // Small frames stay in the buffer until the end, large ones do not.
        for side in [2, 600] {
            let size = Size::new(side, side).unwrap();
            let sink = Sink::Y4m("/dev/full".into());
            let mut output = sink.open(size, Rate::default()).unwrap();
            let written = output.write(&Frame::black(size));
            let error = written.and_then(|()| output.finish()).unwrap_err();
            assert!(error.to_string().contains("/dev/full"), "{error}");
            let Error::Written { source, .. } = error else {
                panic!("{error}");
            };
            assert!(matches!(*source, Error::Write { frame: 0, .. }), "{source}");
            assert!(source.to_string().contains("free some space"), "{source}");
        }
        assert!(Path::new("/dev/full").exists());
    }

    #[test]
    fn a_file_gets_its_name_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.y4m");
        let files = || folder.path().read_dir().unwrap().count();
        let sink = Sink::Y4m(path.clone());
        let mut output = sink.open(size(), Rate::default()).unwrap();
        output.write(&Frame::black(size())).unwrap();
        assert!(!path.exists());
        drop(output);
        assert_eq!(files(), 0);

        let mut output = sink.open(size(), Rate::default()).unwrap();
        output.write(&Frame::black(size())).unwrap();
        assert_eq!(output.finish().unwrap(), None);
        assert_eq!(files(), 1);
        let mut input = Source::Y4m(path).open().unwrap();
        let mut frame = Frame::black(size());
        assert!(input.read(&mut frame).unwrap());
        assert!(!input.read(&mut frame).unwrap());
    }
}
