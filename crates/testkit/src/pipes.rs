//! Pipes for processes that somebody has stopped reading.

use std::io::{PipeReader, PipeWriter, Write};

/// A pipe that takes no byte more, and its other end: whoever writes to it blocks for as long as
/// that is neither read nor dropped.
pub fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe can be had");
    rustix::io::ioctl_fionbio(&writer, true).expect("a pipe need not block");
    while writer.write(&[0; 512]).is_ok() {}
    while writer.write(&[0]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).expect("a pipe may block");
    (reader, writer)
}
