//! Sorting a file over the units of a job.
//!
//! # Files
//! `part` (a unit's part: read, sort, write) · `lines`, `words` (the kinds of records) · `file`
//! (borders of parts) · `contents` (the contents of a file, read independently for the check) ·
//! `checksum` (whether the records are the same)

mod checksum;
mod contents;
mod file;
mod lines;
mod part;
mod words;

pub use checksum::Checksum;
pub use contents::{Contents, Kind};
pub use lines::{Cut, Lines};
pub use part::{Part, Records};
pub use words::Words;
