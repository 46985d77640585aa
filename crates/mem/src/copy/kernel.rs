//! Copies between two processes by the kernel: `process_vm_readv` (Linux 3.2).
//!
//! It may be refused at any time (containers, seccomp, Yama). That is a result per message, not a
//! fault, and the caller falls back to another engine.

use std::io;

/// Copies all of `into` from `address` of process `pid`.
pub fn read_exact(pid: i32, address: u64, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match crate::sys::read_process(pid, address + done as u64, &mut into[done..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => done += n,
        }
    }
    Ok(())
}

/// Copies all of `from` to `address` of process `pid`.
pub fn write_exact(pid: i32, address: u64, from: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < from.len() {
        match crate::sys::write_process(pid, address + done as u64, &from[done..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => done += n,
        }
    }
    Ok(())
}

/// Returns true if this process may copy from `pid`: reads a word that the peer put at `address`
/// and compares it. A reused pid, another namespace and a refusal all give `false`.
pub fn probe(pid: i32, address: u64, cookie: u64) -> bool {
    let mut word = [0; 8];
    read_exact(pid, address, &mut word).is_ok() && u64::from_le_bytes(word) == cookie
}
