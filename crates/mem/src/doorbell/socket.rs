//! The socket of an owner that sleeps on file descriptors, and how other processes make it
//! readable.

use crate::Error;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recv,
    sendto, socket_with,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// Maximum number of datagrams that are discarded after a sleep, because a sender may not stop. The
/// kernel keeps `net.unix.max_dgram_qlen` in a queue: 10 by default, 512 under systemd. If it keeps
/// more than this, the next sleeps end at once.
const DRAINED: usize = 1024;

/// A socket that becomes readable when another process wakes its owner: one descriptor, without a
/// file.
#[derive(Debug)]
pub struct WakeSocket {
    socket: OwnedFd,
    address: u64,
}

impl WakeSocket {
    /// Creates a socket with an address that no other socket has.
    ///
    /// # Errors
    /// [`Error::System`]: for example, no descriptor is left.
    pub fn new() -> Result<WakeSocket, Error> {
        let socket = datagrams().map_err(Error::system("socket"))?;
        loop {
            let mut random = [0; 8];
            getrandom(&mut random, GetRandomFlags::empty()).map_err(Error::system("getrandom"))?;
            let address = u64::from_ne_bytes(random);
            match name(address).and_then(|name| bind(&socket, &name)) {
                Ok(()) => return Ok(WakeSocket { socket, address }),
                Err(Errno::ADDRINUSE) => {}
                Err(errno) => return Err(Error::system("bind")(errno)),
            }
        }
    }

    /// Returns the address that the owner's doorbell contains while it sleeps.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Discards the datagrams that have arrived: their senders had published before they sent them.
    pub(super) fn drain(&self) {
        for _ in 0..DRAINED {
            let mut nothing = [0; 1];
            if recv(&self.socket, &mut nothing, RecvFlags::DONTWAIT).is_err() {
                return;
            }
        }
    }
}

impl AsFd for WakeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Makes the socket with this address readable.
pub(super) fn wake(address: u64) {
    static SENDER: OnceLock<OwnedFd> = OnceLock::new();
    if SENDER.get().is_none() {
        // Without a descriptor, the owner sleeps until its time limit (module documentation of
        // `doorbell`).
        let Ok(socket) = datagrams() else { return };
        let _ = SENDER.set(socket);
    }
    if let (Some(sender), Ok(name)) = (SENDER.get(), name(address)) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // A full queue is D4; if there is no socket with this address, the owner has ended.
        let _ = sendto(sender, &[], flags, &name);
    }
}

fn datagrams() -> Result<OwnedFd, Errno> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

fn name(address: u64) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("samite/wake/{address:016x}").as_bytes())
}
