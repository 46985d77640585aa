//! The run in one process: read a frame, process it, write it. Its output is what every parallel
//! run must give, bit by bit.

use std::time::{Duration, Instant};

use crate::{Error, Frame, Kernel, Loop, Sink, Source};

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Frames processed.
    pub frames: u64,
    /// Their checksum, if the sink was [`Sink::Checksum`].
    pub checksum: Option<u64>,
    /// Time in the source, with its opening.
    pub decode: Duration,
    /// Time in the kernel.
    pub process: Duration,
    /// Time in the sink, with its completion.
    pub encode: Duration,
}

/// Runs all frames of `source` through `kernel` to `sink`. On an error, no output file is left.
pub fn run(source: &Source, kernel: Kernel, how: Loop, sink: &Sink) -> Result<Outcome, Error> {
    let [mut decode, mut process, mut encode] = [Duration::ZERO; 3];
    let mut input = timed(&mut decode, || source.open())?;
    let (size, rate) = (input.size(), input.rate());
    let mut output = timed(&mut encode, || sink.open(size, rate))?;
    let (mut before, mut after) = (Frame::black(size), Frame::black(size));
    let mut frames = 0;
    while timed(&mut decode, || input.read(&mut before))? {
        after.number = before.number;
        timed(&mut process, || {
            kernel.apply(how, size.width(), &before.pixels, &mut after.pixels)
        });
        timed(&mut encode, || output.write(&after))?;
        frames += 1;
    }
    let checksum = timed(&mut encode, || output.finish())?;
    Ok(Outcome {
        frames,
        checksum,
        decode,
        process,
        encode,
    })
}

/// Adds the time of `work` to `total`.
fn timed<T>(total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *total += start.elapsed();
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Size;
    use samite_testkit::require;

    fn generated(frames: u64) -> Source {
        Source::Generator {
            size: Size::new(96, 64).unwrap(),
            frames,
            seed: 3,
        }
    }

    fn checksum(source: &Source, kernel: Kernel, how: Loop) -> (u64, Option<u64>) {
        let outcome = run(source, kernel, how, &Sink::Checksum).unwrap();
        (outcome.frames, outcome.checksum)
    }

    #[test]
    fn a_file_between_two_runs_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy.y4m");
        let source = generated(5);
        let copied = run(
            &source,
            Kernel::Copy,
            Loop::Scalar,
            &Sink::Y4m(path.clone()),
        );
        assert_eq!(copied.unwrap().frames, 5);
        let mut checksums = Vec::new();
        for kernel in [Kernel::Sobel, Kernel::Laplacian, Kernel::Copy] {
            let direct = checksum(&source, kernel, Loop::Vector);
            assert_eq!(direct, checksum(&source, kernel, Loop::Scalar));
            assert_eq!(
                direct,
                checksum(&Source::Y4m(path.clone()), kernel, Loop::Vector)
            );
            assert!(!checksums.contains(&direct));
            checksums.push(direct);
        }
        let nothing = run(&source, Kernel::Sobel, Loop::Vector, &Sink::Nothing).unwrap();
        assert_eq!((nothing.frames, nothing.checksum), (5, None));
        assert_eq!(checksum(&generated(0), Kernel::Sobel, Loop::Vector).0, 0);
    }

    #[test]
    fn a_truncated_source_leaves_no_output() {
        let folder = tempfile::tempdir().unwrap();
        let [whole, cut, out] = ["whole", "cut", "out"].map(|name| folder.path().join(name));
        run(
            &generated(3),
            Kernel::Copy,
            Loop::Vector,
            &Sink::Y4m(whole.clone()),
        )
        .unwrap();
        let bytes = std::fs::read(&whole).unwrap();
        std::fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
        let result = run(
            &Source::Y4m(cut.clone()),
            Kernel::Sobel,
            Loop::Vector,
            &Sink::Y4m(out),
        );
        let Err(Error::Input { path, source }) = result else {
            panic!("{result:?}");
        };
        assert_eq!(path, cut);
        assert!(matches!(*source, Error::Truncated { frame: 2, .. }));
        assert_eq!(folder.path().read_dir().unwrap().count(), 2);
        let missing = Source::Y4m(folder.path().join("missing"));
        let result = run(&missing, Kernel::Sobel, Loop::Vector, &Sink::Nothing);
        assert!(matches!(
            result,
            Err(Error::File {
                doing: "opened",
                ..
            })
        ));
    }

    fn has_ffmpeg(test: &str) -> bool {
        let found = std::process::Command::new("ffmpeg")
            .arg("-version")
            .output();
        let is_installed = found.is_ok_and(|output| output.status.success());
        require(test, is_installed, "install the Debian package ffmpeg")
    }

    /// A format that has few frame rates gets all frames, or none.
    #[test]
    fn an_encoder_leaves_out_no_frames() {
        if !has_ffmpeg("sequential::tests::an_encoder_leaves_out_no_frames") {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let [clip, out] = ["clip.y4m", "out.mpg"].map(|name| folder.path().join(name));
        for rate in [1, 10, 25, 100] {
            let mut stream = format!("YUV4MPEG2 W96 H64 F{rate}:1 Cmono\n").into_bytes();
            for number in 0..30 {
                stream.extend(b"FRAME\n");
                stream.extend([number * 8; 96 * 64]);
            }
            std::fs::write(&clip, stream).unwrap();
            let (from, to) = (Source::Y4m(clip.clone()), Sink::Ffmpeg(out.clone()));
            match run(&from, Kernel::Copy, Loop::Vector, &to) {
                Ok(_) => {
                    let decoded = Source::Ffmpeg(out.clone());
                    assert_eq!(checksum(&decoded, Kernel::Copy, Loop::Vector).0, 30);
                    std::fs::remove_file(&out).unwrap();
                }
                Err(error) => assert!(!out.exists(), "{error}"),
            }
        }
    }

    #[test]
    fn ffmpeg_encodes_and_decodes() {
        let test = "sequential::tests::ffmpeg_encodes_and_decodes";
        if !has_ffmpeg(test) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clip.mkv");
        let source = generated(10);
        // FFV1 would need an option, so the default codec of the format loses some bits.
        let encoded = run(
            &source,
            Kernel::Copy,
            Loop::Vector,
            &Sink::Ffmpeg(path.clone()),
        );
        assert_eq!(encoded.unwrap().frames, 10);
        let decoded = Source::Ffmpeg(path.clone());
        assert_eq!(checksum(&decoded, Kernel::Sobel, Loop::Vector).0, 10);

        // A file that ends early is none, though ffmpeg succeeds.
        let long = folder.path().join("long.mkv");
        let encoded = run(
            &generated(200),
            Kernel::Copy,
            Loop::Vector,
            &Sink::Ffmpeg(long.clone()),
        );
        assert_eq!(encoded.unwrap().frames, 200);
        let bytes = std::fs::read(&long).unwrap();
        std::fs::write(&long, &bytes[..bytes.len() * 6 / 10]).unwrap();
        let cut = Source::Ffmpeg(long.clone());
        let result = run(&cut, Kernel::Sobel, Loop::Vector, &Sink::Nothing);
        assert!(
            matches!(result, Err(Error::FfmpegFailed { .. })),
            "{result:?}"
        );
        std::fs::remove_file(&long).unwrap();

        std::fs::write(&path, b"no video").unwrap();
        let result = run(&decoded, Kernel::Sobel, Loop::Vector, &Sink::Nothing);
        assert!(matches!(result, Err(Error::FfmpegFailed { .. })));
        let sink = Sink::Ffmpeg(folder.path().join("clip.no-such-format"));
        let result = run(&source, Kernel::Sobel, Loop::Vector, &sink);
        assert!(matches!(result, Err(Error::FfmpegFailed { .. })));
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }
}
