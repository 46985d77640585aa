//! The tests of the launcher: `job` runs units, `decoders` reads files of any content.

mod decoders;
mod job;
