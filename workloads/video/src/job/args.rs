//! What the programs share on their command lines.

use crate::{Kernel, Sink, Size, Source};
use clap::Args;
use std::path::{Path, PathBuf};

/// The frames of the job.
#[derive(Clone, Debug, Args)]
pub struct Clip {
    /// A video: `.y4m`, or what ffmpeg decodes; without it, frames are generated
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The size of generated frames: hd, uhd1, uhd2, or WIDTHxHEIGHT
    #[arg(long, default_value = "hd", value_parser = parse_size)]
    pub size: Size,
    /// The number of generated frames
    #[arg(long, default_value_t = 100)]
    pub frames: u64,
    /// The seed of generated frames
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Clip {
    /// Returns the source of the frames.
    pub fn source(&self) -> Source {
        match &self.file {
            None => Source::Generator {
                size: self.size,
                frames: self.frames,
                seed: self.seed,
            },
            Some(path) if is_y4m(path) => Source::Y4m(path.clone()),
            Some(path) => Source::Ffmpeg(path.clone()),
        }
    }
}

/// Returns where the frames go: to a file, or only into the checksum.
pub(crate) fn sink(output: Option<&Path>) -> Sink {
    match output {
        None => Sink::Nothing,
        Some(path) if is_y4m(path) => Sink::Y4m(path.to_owned()),
        Some(path) => Sink::Ffmpeg(path.to_owned()),
    }
}

fn is_y4m(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "y4m")
}

/// Parses the name of a kernel.
pub(crate) fn parse_kernel(text: &str) -> Result<Kernel, String> {
    match text {
        "sobel" => Ok(Kernel::Sobel),
        "laplacian" => Ok(Kernel::Laplacian),
        "copy" => Ok(Kernel::Copy),
        _ => Err("expected sobel, laplacian or copy".to_owned()),
    }
}

fn parse_size(text: &str) -> Result<Size, String> {
    let side = |text: &str| text.parse().ok();
    match text {
        "hd" => return Ok(Size::HD),
        "uhd1" => return Ok(Size::UHD1),
        "uhd2" => return Ok(Size::UHD2),
        _ => {}
    }
    let sides = text.split_once('x');
    let sides = sides.and_then(|(width, height)| Some((side(width)?, side(height)?)));
    let (width, height) = sides.ok_or("expected hd, uhd1, uhd2, or a size such as 640x480")?;
    Size::new(width, height).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        assert_eq!(parse_size("uhd2"), Ok(Size::UHD2));
        assert_eq!(parse_size("64x48"), Ok(Size::new(64, 48).unwrap()));
        for text in ["", "64", "x", "64x", "0x1", "64x48x2", "9000x1", "-1x1"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
