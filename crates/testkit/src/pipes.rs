//! Pipes for processes whose output is no longer read.

use std::io::{PipeReader, PipeWriter, Write};

/// Returns a pipe that accepts no more bytes, and its other end: a process that writes to it blocks
/// as long as the other end is neither read nor dropped.
pub fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe can be had");
    rustix::io::ioctl_fionbio(&writer, true).expect("a pipe need not block");
    while writer.write(&[0; 512]).is_ok() {}
    while writer.write(&[0]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).expect("a pipe may block");
    (reader, writer)
}
