//! One-sided operations on a segment of any process.

use crate::access_path::AccessPath;
use crate::atomic::apply;
use crate::engine::lost;
use crate::fabric::Fabric;
use crate::node::State;
use crate::ops::{Key, Outcome as Ended, Work};
use crate::route::{refused, wrong_phase};
use crate::transport::RemoteKey;
use crate::{Atomic, Error, Handle, Result, SegmentKey, Width, WordUpdate};
use samite_mem::SharedBytes;
use samite_mem::copy::kernel;
use samite_mem::lease::{Readable, is_offered};
use samite_mem::lend::WriteBuf;

/// A segment of a peer, or of this process, as a target of one-sided operations.
///
/// A fork of the process has a copy of it without access: operations end with [`Error::Forked`],
/// and the bytes that [`Remote::mapped`] and [`Remote::readable`] returned before are private
/// zeroes there. If the system does not overcommit memory (`vm.overcommit_memory=2`), a fork that
/// writes to them may be killed by SIGSEGV.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let peer = fabric.me();
/// use samite_fabric::{Atomic, Width};
/// let segment = fabric.allocate(4096)?;
/// let remote = fabric.attach(segment.key())?; // at any process of the domain that has the key
/// remote.put(0, &[1, 2, 3, 4])?;
/// let mut bytes = [0; 2];
/// remote.get(2, &mut bytes)?;
/// assert_eq!(bytes, [3, 4]);
/// let old = remote.atomic(64, Atomic::Max, Width::W32, 5, 0)?;
/// assert_eq!(old, 0);
/// assert_eq!(remote.compare_exchange(128, 0, 9)?, 0);
/// # Ok::<(), samite_fabric::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Remote {
    fabric: Fabric,
    key: SegmentKey,
    path: AccessPath,
}

impl Remote {
    pub(crate) fn new(fabric: Fabric, key: SegmentKey, path: AccessPath) -> Self {
        Remote { fabric, key, path }
    }

    /// Returns its key.
    pub fn key(&self) -> SegmentKey {
        self.key
    }

    /// Returns the bytes, if they are mapped here: reads and writes of them are one-sided
    /// operations.
    pub fn mapped(&self) -> Option<&SharedBytes> {
        match &self.path {
            AccessPath::Mapped { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// Returns whether its owner still offers it, as far as this process can tell.
    #[inline]
    pub fn is_offered(&self) -> bool {
        match &self.path {
            AccessPath::Mapped { offered, .. }
            | AccessPath::Kernel { offered, .. }
            | AccessPath::Reading { offered, .. } => self.offers(offered),
            AccessPath::Rma(_) | AccessPath::Messages => true,
        }
    }

    #[inline(always)]
    fn offers(&self, offered: &SharedBytes) -> bool {
        is_offered(offered.u64(0), self.key.generation)
    }

    /// Returns the bytes, if they are mapped here and no process writes them.
    pub fn readable(&self) -> Option<&Readable> {
        match &self.path {
            AccessPath::Reading { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    #[inline(always)]
    fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.key.bytes => Ok(()),
            end => Err(Error::OutOfRange {
                offset,
                end: end.unwrap_or(u64::MAX),
                bytes: self.key.bytes,
            }),
        }
    }

    /// Checks that a word lies inside, and where atomics may access it.
    #[inline(always)]
    fn check_word(&self, offset: u64, width: Width) -> Result<()> {
        self.check(offset, width.bytes())?;
        match offset.is_multiple_of(width.bytes()) {
            true => Ok(()),
            false => Err(Error::Misaligned(offset)),
        }
    }

    /// Returns the bytes, if they are mapped here and may be written. One load of a line that
    /// changes only when the owner withdraws the segment. A withdrawn segment is an error, but no
    /// danger: the memory is not reused while this value holds its lease.
    #[inline(always)]
    fn writable(&self) -> Result<Option<&SharedBytes>> {
        match &self.path {
            AccessPath::Mapped { offered, .. } if !self.offers(offered) => Err(self.withdrawn()),
            AccessPath::Mapped { bytes, .. } => Ok(Some(bytes)),
            AccessPath::Reading { .. } => Err(self.named(wrong_phase(self.key))),
            _ => Ok(None),
        }
    }

    /// Returns the process and address at which the kernel accesses the bytes. A killed process
    /// withdraws nothing, and its id may have been reused: the agent's table has the present
    /// incarnation.
    fn by_kernel(&self) -> Result<Option<(i32, u64)>> {
        let AccessPath::Kernel {
            owner,
            pid,
            address,
            offered,
            ..
        } = &self.path
        else {
            return Ok(None);
        };
        if !self.offers(offered) {
            return Err(self.withdrawn());
        }
        let (peer, incarnation) = (self.key.peer, self.key.incarnation);
        let peers = &self.fabric.0.node.layout.peers;
        match peers.state(*owner) == (State::Alive, incarnation) {
            true => Ok(Some((*pid, *address))),
            false => Err(self.named(lost(peer, incarnation))),
        }
    }

    /// Gives the owner that an error names its name. Takes no lock, as mapped accesses take none.
    #[cold]
    fn named(&self, mut error: Error) -> Error {
        let life = self.key.incarnation;
        error.name_peers(|peer, _| self.fabric.0.node.name_of(peer, Some(life)));
        error
    }

    /// Returns why it is not offered. In a fork the word that says so is zeroed, like all of the
    /// arena.
    #[cold]
    fn withdrawn(&self) -> Error {
        if self.fabric.0.is_of_parent() {
            return Error::Forked;
        }
        self.named(refused(self.key))
    }

    /// Copies `from` to the segment. One-sided. Completion: remote (the bytes have arrived).
    // Always inlined: where the length is known, what is left of it is two comparisons and a store.
    #[inline(always)]
    pub fn put(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.check(offset, from.len() as u64)?;
        match self.writable()? {
            Some(bytes) => {
                bytes.write(offset, from);
                Ok(())
            }
            None => self.put_far_and_wait(offset, from),
        }
    }

    #[inline(never)]
    fn put_far_and_wait(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.put_far(offset, from)?.wait().map(|_| ())
    }

    /// As [`Remote::put`], without waiting; the bytes are copied before it returns. Completion by
    /// the handle: remote.
    pub fn put_nb(&self, offset: u64, from: &[u8]) -> Result<Handle<u64>> {
        self.check(offset, from.len() as u64)?;
        match self.writable()? {
            Some(bytes) => {
                bytes.write(offset, from);
                Ok(Handle::ended())
            }
            None => self.put_far(offset, from),
        }
    }

    fn put_far(&self, offset: u64, from: &[u8]) -> Result<Handle<u64>> {
        if let Some((pid, address)) = self.by_kernel()?
            && kernel::write_exact(pid, address + offset, from).is_ok()
        {
            return Ok(Handle::ended());
        }
        match self.remote_key() {
            Some(remote) => self.fabric.put_rma(self.key, remote, offset, from),
            None => self.fabric.put_far(self.key, offset, from),
        }
    }

    /// Returns a handle of an operation that has ended with `value`.
    fn ended<T>(&self, what: &'static str, value: Ended) -> Result<Handle<T>> {
        let ops = &mut self.fabric.0.lock()?.engine.ops;
        let key = ops.add(None, what, Work::Done(Ok(value)));
        Ok(Handle::new(self.fabric.clone(), key))
    }

    fn remote_key(&self) -> Option<&RemoteKey> {
        match &self.path {
            AccessPath::Rma(by_rma) => by_rma.key(&self.fabric, self.key),
            _ => None,
        }
    }

    /// Starts to fill a buffer from a checked range; returns the operation.
    pub(crate) fn request_get(&self, offset: u64, into: WriteBuf) -> Result<Key> {
        match self.remote_key() {
            Some(remote) => self.fabric.get_rma(self.key, remote, offset, into),
            None => self.fabric.request_get(self.key, offset, into),
        }
    }

    /// Copies from the segment into `into`. One-sided. Completion: the bytes have arrived.
    #[inline]
    pub fn get(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        if !self.get_at_once(offset, into)? {
            self.fabric
                .scope(|scope| scope.get_far(self, offset, into)?.wait())?;
        }
        Ok(())
    }

    /// Starts to copy `len` bytes out of the segment; the handle returns them.
    pub fn get_nb(&self, offset: u64, len: u64) -> Result<Handle<Vec<u8>>> {
        self.check(offset, len)?;
        let mut bytes = memory_for(len)?;
        if self.get_at_once(offset, &mut bytes)? {
            return self.ended("get", Ended::Bytes(bytes));
        }
        let key = self.request_get(offset, WriteBuf::owned(bytes))?;
        Ok(Handle::new(self.fabric.clone(), key))
    }

    /// Copies the bytes if that is possible without the owner; returns `false` if the owner must be
    /// asked.
    #[inline]
    pub(crate) fn get_at_once(&self, offset: u64, into: &mut [u8]) -> Result<bool> {
        self.check(offset, into.len() as u64)?;
        match &self.path {
            AccessPath::Reading { bytes, .. } => {
                // The directory's word is not checked: a lease outlives the offer.
                if self.fabric.0.is_of_parent() {
                    return Err(Error::Forked);
                }
                let start = offset as usize;
                into.copy_from_slice(&bytes.as_slice::<u8>()[start..start + into.len()]);
                Ok(true)
            }
            _ => match self.writable()? {
                Some(bytes) => {
                    bytes.read(offset, into);
                    Ok(true)
                }
                None => Ok(self.by_kernel()?.is_some_and(|(pid, address)| {
                    kernel::read_exact(pid, address + offset, into).is_ok()
                })),
            },
        }
    }

    /// Performs one atomic operation on a word of the segment; returns the old value. One-sided.
    /// Completion: remote.
    #[inline]
    pub fn atomic(&self, offset: u64, op: Atomic, width: Width, a: u64, b: u64) -> Result<u64> {
        self.check_word(offset, width)?;
        match self.writable()? {
            Some(bytes) => Ok(apply(bytes, offset, op, width, a, b)),
            None => self.atomic_far(offset, op, width, a, b)?.wait(),
        }
    }

    /// As [`Remote::atomic`], without waiting.
    pub fn atomic_nb(
        &self,
        offset: u64,
        op: Atomic,
        width: Width,
        a: u64,
        b: u64,
    ) -> Result<Handle<u64>> {
        self.check_word(offset, width)?;
        match self.writable()? {
            Some(bytes) => {
                let old = apply(bytes, offset, op, width, a, b);
                self.ended("atomic", Ended::Word(old))
            }
            None => self.atomic_far(offset, op, width, a, b),
        }
    }

    /// Performs many atomic updates of words, unordered, without old values. One-sided. On mapped
    /// memory they are done when this returns; otherwise the handle tells. Every place is checked
    /// first.
    #[inline]
    pub fn update_batch(
        &self,
        op: Atomic,
        width: Width,
        updates: &[WordUpdate],
    ) -> Result<Handle<u64>> {
        for update in updates {
            self.check_word(update.offset, width)?;
        }
        match self.writable()? {
            Some(bytes) => {
                for update in updates {
                    apply(bytes, update.offset, op, width, update.value, 0);
                }
                Ok(Handle::ended())
            }
            None if updates.is_empty() => Ok(Handle::ended()),
            None => self.fabric.updates_far(self.key, (op, width), updates),
        }
    }

    /// Copies elements of `size` bytes at `offsets`; the handle returns them one after the other.
    /// One-sided. If the memory is not mapped here, they are sent together.
    pub fn get_batch(&self, size: u64, offsets: &[u64]) -> Result<Handle<Vec<u8>>> {
        for offset in offsets {
            self.check(*offset, size)?;
        }
        if offsets.is_empty() || size == 0 {
            return self.get_nb(0, 0);
        }
        let bytes = memory_for(size.saturating_mul(offsets.len() as u64))?;
        let into = WriteBuf::owned(bytes);
        self.fabric.gather_far(self.key, size, offsets, into)
    }

    /// Asks the owner for an atomic: the kernel has none on other processes' memory (see
    /// `proto/rma`).
    fn atomic_far(
        &self,
        offset: u64,
        op: Atomic,
        width: Width,
        a: u64,
        b: u64,
    ) -> Result<Handle<u64>> {
        let op = (op, width);
        if let Some(remote) = self.remote_key()
            && let Some(started) = self
                .fabric
                .atomic_rma(self.key, remote, offset, op, (a, b))?
        {
            return Ok(started);
        }
        self.fabric.atomic_far(self.key, offset, op, (a, b))
    }

    /// Adds to a 64-bit word; returns the old value.
    #[inline]
    pub fn fetch_add(&self, offset: u64, value: u64) -> Result<u64> {
        self.atomic(offset, Atomic::Add, Width::W64, value, 0)
    }

    /// Replaces a 64-bit word if it is `expected`; returns the old value.
    #[inline]
    pub fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64> {
        self.atomic(offset, Atomic::CompareExchange, Width::W64, expected, new)
    }
}

/// Allocates private memory for a get. Errors: [`Error::Memory`] if there is not enough.
fn memory_for(bytes: u64) -> Result<Vec<u8>> {
    let memory = crate::proto::rendezvous::zeroed(bytes);
    memory.ok_or_else(|| Error::Memory(format!("no memory for a get of {bytes} bytes")))
}
