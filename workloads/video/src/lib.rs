//! Video through a 3x3 convolution: the application by which the S-DSM paper (Cudennec and
//! Trabelsi, 2020) compares a shared memory with message passing.
//!
//! A source gives grey frames of 8 bits per pixel, a kernel processes each of them, and a sink
//! takes the results in the order of their numbers.
//!
//! # Objects
//!
//! | file | holds |
//! |---|---|
//! | [`frame`] | [`Frame`] and [`Size`], with its limit |
//! | [`kernel`] | [`Kernel`]: Sobel, Laplacian and copy, each by a scalar and a vectorized loop |
//! | [`generator`] | [`Generator`]: frames that are a function of size, number and seed |
//! | [`checksum`] | [`Checksum`]: one number for a sequence of frames |
//! | [`y4m`] | reader and writer of YUV4MPEG2 streams |
//! | [`source`] | [`Source`]: a generator, a y4m stream, or a file that ffmpeg decodes |
//! | [`sink`] | [`Sink`]: a checksum, a y4m file, a file that ffmpeg encodes, or nothing |
//! | [`sequential`] | the run in one process, with which parallel runs are compared |
//! | [`job`] | the run by several programs: a source, workers, and a sink |
//! | `ffmpeg` | the child process, its last words and its exit status |
//! | `partial` | output files that get their names when they are complete |
//!
//! # Rules
//!
//! * A size is checked before memory is allocated for it.
//! * Both loops of a kernel give the same bits.
//! * Output that ends early is an error. An output file gets its name only when it is complete.
//!
//! # Example
//!
//! ```
//! use samite_video::{Kernel, Loop, Sink, Size, Source, sequential};
//!
//! let source = Source::Generator { size: Size::new(64, 48)?, frames: 3, seed: 1 };
//! let fast = sequential::run(&source, Kernel::Sobel, Loop::Vector, &Sink::Checksum)?;
//! let plain = sequential::run(&source, Kernel::Sobel, Loop::Scalar, &Sink::Checksum)?;
//! assert_eq!(fast.frames, 3);
//! assert_eq!(fast.checksum, plain.checksum);
//! # Ok::<(), samite_video::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod checksum;
mod error;
mod ffmpeg;
pub mod frame;
pub mod generator;
pub mod job;
pub mod kernel;
mod partial;
pub mod sequential;
pub mod sink;
pub mod source;
pub mod y4m;

pub use checksum::Checksum;
pub use error::Error;
pub use frame::{Frame, Size};
pub use generator::Generator;
pub use kernel::{Kernel, Loop};
pub use sink::{Output, Sink};
pub use source::{Input, Source};
