//! YUV4MPEG2 streams, as far as grey video needs them.
//!
//! ```text
//! YUV4MPEG2 W1920 H1080 F25:1 Cmono\n     the header of the stream; other fields are ignored
//! FRAME\n  luma  chroma                   each frame; mono has no chroma
//! ```
//!
//! The reader accepts 8 bits of mono, 4:2:0, 4:2:2 and 4:4:4 and skips the chroma. The writer
//! writes mono.

use std::io::{BufReader, ErrorKind, Read, Write};

use crate::{Error, Frame, Size};

/// The longest line of the header or before a frame, in bytes.
const MAX_LINE: usize = 4096;

/// Frames per second, as a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Frames.
    pub frames: u32,
    /// In how many seconds.
    pub seconds: u32,
}

impl Default for Rate {
    /// 25 frames per second.
    fn default() -> Self {
        Self {
            frames: 25,
            seconds: 1,
        }
    }
}

/// Reads a stream frame by frame.
pub struct Reader<R> {
    from: BufReader<R>,
    size: Size,
    rate: Rate,
    /// Bytes of chroma after the luma of each frame.
    chroma: usize,
    next: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the header of the stream. No memory for frames is allocated yet.
    pub fn new(from: R) -> Result<Self, Error> {
        let mut from = BufReader::new(from);
        let failed = |source| Error::Read { frame: 0, source };
        let Line::Complete(line) = read_line(&mut from).map_err(failed)? else {
            return Err(Error::NotY4m);
        };
        let header = Header::parse(&line)?;
        Ok(Self {
            from,
            size: header.size,
            rate: header.rate,
            chroma: header.chroma,
            next: 0,
        })
    }

    /// The size of all frames.
    pub fn size(&self) -> Size {
        self.size
    }

    /// The frame rate of the header.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Reads the next frame into `frame`, whose memory is used again. Returns false at the end of
    /// the stream.
    pub fn read(&mut self, frame: &mut Frame) -> Result<bool, Error> {
        let number = self.next;
        let failed = |source| Error::Read {
            frame: number,
            source,
        };
        let expected = self.size.pixels() + self.chroma;
        let truncated = |got| Error::Truncated {
            frame: number,
            got,
            expected,
        };
        match read_line(&mut self.from).map_err(failed)? {
            Line::End => return Ok(false),
            Line::Complete(line) if line == b"FRAME" || line.starts_with(b"FRAME ") => {}
            Line::Cut(line) if b"FRAME".starts_with(&line) || line.starts_with(b"FRAME ") => {
                return Err(truncated(0));
            }
            _ => return Err(Error::Marker { frame: number }),
        }
        frame.number = number;
        frame.size = self.size;
        frame.pixels.resize(self.size.pixels(), 0);
        let luma = fill(&mut self.from, &mut frame.pixels).map_err(failed)?;
        if luma < frame.pixels.len() {
            return Err(truncated(luma));
        }
        let chroma = (&mut self.from).take(self.chroma as u64);
        let chroma = skip(chroma).map_err(failed)?;
        if chroma < self.chroma {
            return Err(truncated(luma + chroma));
        }
        self.next += 1;
        Ok(true)
    }
}

/// What the header of a stream says.
struct Header {
    size: Size,
    rate: Rate,
    chroma: usize,
}

impl Header {
    fn parse(line: &[u8]) -> Result<Self, Error> {
        let line = String::from_utf8_lossy(line);
        let mut fields = line.split(' ');
        if fields.next() != Some("YUV4MPEG2") {
            return Err(Error::NotY4m);
        }
        let (mut width, mut height) = (None, None);
        let mut rate = Rate::default();
        let mut colour = "420".to_owned();
        for field in fields.filter(|field| !field.is_empty()) {
            let letter = field.chars().next().map_or(0, char::len_utf8);
            let (letter, value) = field.split_at(letter);
            match letter {
                "W" => width = side(value),
                "H" => height = side(value),
                "F" => rate = parse_rate(value)?,
                "C" => colour = value.to_owned(),
                _ => {}
            }
        }
        let (Some(width), Some(height)) = (width, height) else {
            return Err(Error::NoSize);
        };
        let size = Size::new(width, height)?;
        let half = |length: usize| length.div_ceil(2);
        let chroma = match colour.as_str() {
            "mono" => 0,
            "420" | "420jpeg" | "420mpeg2" | "420paldv" => {
                2 * half(size.width()) * half(size.height())
            }
            "422" => 2 * half(size.width()) * size.height(),
            "444" => 2 * size.pixels(),
            _ => return Err(Error::Colour { colour }),
        };
        Ok(Self { size, rate, chroma })
    }
}

/// Returns a side; one with too many digits is as large as possible, so that it is refused as too
/// large.
fn side(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Returns the rate. `0:0` stands for an unknown rate, which becomes the default.
fn parse_rate(value: &str) -> Result<Rate, Error> {
    let parts = value.split_once(':');
    let parts =
        parts.and_then(|(frames, seconds)| Some((frames.parse().ok()?, seconds.parse().ok()?)));
    match parts {
        Some((0, 0)) => Ok(Rate::default()),
        Some((frames, seconds)) if frames > 0 && seconds > 0 => Ok(Rate { frames, seconds }),
        _ => Err(Error::Rate {
            rate: value.to_owned(),
        }),
    }
}

/// A line of a stream, without its end.
enum Line {
    /// The stream ended before the line.
    End,
    Complete(Vec<u8>),
    /// The stream ended within the line, or the line is too long.
    Cut(Vec<u8>),
}

fn read_line(from: &mut impl Read) -> std::io::Result<Line> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < MAX_LINE {
        match fill(from, &mut byte)? {
            0 if line.is_empty() => return Ok(Line::End),
            0 => break,
            _ if byte[0] == b'\n' => return Ok(Line::Complete(line)),
            _ => line.push(byte[0]),
        }
    }
    Ok(Line::Cut(line))
}

/// Fills `into` and returns the number of bytes, which is smaller only at the end of the stream.
fn fill(from: &mut impl Read, into: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match from.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads to the end and returns the number of bytes.
fn skip(mut from: impl Read) -> std::io::Result<usize> {
    Ok(std::io::copy(&mut from, &mut std::io::sink())? as usize)
}

/// Writes a mono stream frame by frame.
pub struct Writer<W> {
    to: W,
}

impl<W: Write> Writer<W> {
    /// Writes the header of the stream.
    pub fn new(mut to: W, size: Size, rate: Rate) -> Result<Self, Error> {
        let (width, height) = (size.width(), size.height());
        let Rate { frames, seconds } = rate;
        writeln!(
            to,
            "YUV4MPEG2 W{width} H{height} F{frames}:{seconds} Ip A1:1 Cmono"
        )
        .map_err(|source| Error::Write { frame: 0, source })?;
        Ok(Self { to })
    }

    /// Writes a frame. It must have the size of the stream.
    pub fn write(&mut self, frame: &Frame) -> Result<(), Error> {
        let written = self.to.write_all(b"FRAME\n");
        written
            .and_then(|()| self.to.write_all(&frame.pixels))
            .map_err(|source| Error::Write {
                frame: frame.number,
                source,
            })
    }

    /// Returns what the stream was written to.
    pub fn into_inner(self) -> W {
        self.to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(stream: &[u8]) -> Result<Vec<Frame>, Error> {
        let mut reader = Reader::new(stream)?;
        let mut frame = Frame::black(reader.size());
        let mut frames = Vec::new();
        while reader.read(&mut frame)? {
            frames.push(frame.clone());
        }
        Ok(frames)
    }

    #[test]
    fn what_is_written_is_read() {
        let size = Size::new(5, 3).unwrap();
        let rate = Rate {
            frames: 30000,
            seconds: 1001,
        };
        let frames: Vec<Frame> = (0..4)
            .map(|number| Frame {
                number,
                size,
                pixels: (0..15).map(|pixel| pixel + 16 * number as u8).collect(),
            })
            .collect();
        let mut writer = Writer::new(Vec::new(), size, rate).unwrap();
        for frame in &frames {
            writer.write(frame).unwrap();
        }
        let stream = writer.into_inner();
        assert_eq!(Reader::new(&stream[..]).unwrap().rate(), rate);
        assert_eq!(read_all(&stream).unwrap(), frames);
    }

    #[test]
    fn chroma_is_skipped() {
        for (colour, chroma) in [
            ("", 12),
            (" C420jpeg", 12),
            (" C422", 18),
            (" C444", 30),
            (" Cmono", 0),
        ] {
            let mut stream = format!("YUV4MPEG2 W5 H3 F25:1{colour}\n").into_bytes();
            for number in 0..2 {
                stream.extend(b"FRAME Ip\n");
                stream.extend([number; 15]);
                stream.extend(vec![99; chroma]);
            }
            let frames = read_all(&stream).unwrap();
            assert_eq!(frames.len(), 2, "{colour}");
            assert_eq!(frames[1].pixels, [1; 15], "{colour}");
        }
    }

    #[test]
    fn a_bad_header_is_refused() {
        let error = |stream: &str| read_all(stream.as_bytes()).unwrap_err();
        assert!(matches!(error(""), Error::NotY4m));
        assert!(matches!(error("RIFF\n"), Error::NotY4m));
        assert!(matches!(error("YUV4MPEG2 W5 H3"), Error::NotY4m));
        assert!(matches!(error(&"Y".repeat(1 << 20)), Error::NotY4m));
        for sizes in ["", "W5", "H3", "W H3", "W-5 H3", "W5 Hx"] {
            let stream = format!("YUV4MPEG2 {sizes}\n");
            assert!(matches!(error(&stream), Error::NoSize), "{sizes}");
        }
        for sizes in ["W0 H3", "W8193 H1", "W99999999999999999999999 H3"] {
            let stream = format!("YUV4MPEG2 {sizes} Cmono\n");
            assert!(matches!(error(&stream), Error::FrameSize { .. }), "{sizes}");
        }
        for colour in ["420p10", "444alpha", "mono16", "411", ""] {
            let stream = format!("YUV4MPEG2 W5 H3 C{colour}\n");
            assert!(matches!(error(&stream), Error::Colour { .. }), "{colour}");
        }
        for rate in ["", "25", "0:1", "1:0", "a:b"] {
            let stream = format!("YUV4MPEG2 W5 H3 F{rate}\n");
            assert!(matches!(error(&stream), Error::Rate { .. }), "{rate}");
        }
    }

    #[test]
    fn every_cut_within_a_frame_is_noticed() {
        let mut stream = b"YUV4MPEG2 W2 H2 F25:1 C420\n".to_vec();
        let header = stream.len();
        stream.extend(b"FRAME\n123456FRAME\n123456");
        let frame = (stream.len() - header) / 2;
        for cut in header..stream.len() {
            let (number, rest) = ((cut - header) / frame, (cut - header) % frame);
            match read_all(&stream[..cut]) {
                Ok(frames) => assert!(rest == 0 && frames.len() == number, "cut at {cut}"),
                Err(Error::Truncated {
                    frame,
                    got,
                    expected: 6,
                }) => {
                    assert!(rest > 0);
                    assert_eq!((frame, got), (number as u64, rest.saturating_sub(6)));
                }
                Err(error) => panic!("cut at {cut}: {error}"),
            }
        }
    }

    #[test]
    fn a_frame_without_its_marker_is_refused() {
        let stream = b"YUV4MPEG2 W1 H1 Cmono\nFRAME\n1FRAMES\n2";
        assert!(matches!(read_all(stream), Err(Error::Marker { frame: 1 })));
    }

    #[test]
    fn random_changes_give_frames_or_errors() {
        let good = b"YUV4MPEG2 W4 H2 F25:1 C420\nFRAME\n012345670123FRAME\n012345670123";
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let mut stream = good.to_vec();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..stream.len());
                stream[at] = random.u8(..);
            }
            stream.truncate(random.usize(..=stream.len()));
            _ = read_all(&stream);
        }
    }
}
