//! Memory registered for remote access: which process offers what, and how another process accesses
//! it.
//!
//! Peers on one node map each other's segments: put, get and atomics ([`crate::Remote`]) are then a
//! bounds check and a load, a store or a memcpy, with no lock, no allocation and no system call.
//! Otherwise they go by the kernel (registered private memory), by the RMA of the transport or over
//! messages. The result is the same.
//!
//! A process that accesses a segment without its owner holds a lease on it (`samite_mem::lease`),
//! as does the owner itself while it uses its ranges. A segment that is dropped while a lease is
//! out keeps its memory and its number until the last one ends: a late put then is an error or has
//! no effect, and never writes to memory that has been reused.

use crate::access_path::AccessPath;
use crate::engine::{Access, Offered};
use crate::fabric::Fabric;
use crate::node::SEGMENTS_MAX;
use crate::phased::Phased;
use crate::remote::Remote;
use crate::route::Reach;
use crate::rpc::LOOK_UP;
use crate::{Error, Handle, PeerId, Result, SegmentKey};
use bytemuck::Pod;
use samite_mem::SharedBytes;
use samite_mem::lease::{LeasedBlock, OwnEntry};

/// A segment of this process; withdrawn when dropped, and freed when nobody uses it any more.
#[derive(Debug)]
pub struct Segment {
    bytes: SharedBytes,
    /// Dropped last: the lease of its own range has ended by then.
    phased: Phased,
}

/// A number reserved for a future segment: no other thread gets it. Given back when dropped.
#[derive(Debug)]
pub struct Reserved {
    /// `None`: the number has passed to the segment.
    fabric: Option<Fabric>,
    segment: u32,
    entry: OwnEntry,
}

impl Reserved {
    /// Allocates the segment with this number, zeroed and open. Local.
    pub fn allocate(self, bytes: u64) -> Result<Phased> {
        let memory = self.fabric.as_ref().map(|fabric| fabric.grow_phased(bytes));
        memory.ok_or_else(no_number)??.publish_as(self)
    }

    /// As [`Fabric::register`], with this number.
    pub fn register<T: Pod + Send>(self, elements: Vec<T>) -> Result<Segment> {
        let adopt = |entry| Ok(LeasedBlock::adopt(elements, entry));
        self.offer(adopt)?.into_segment()
    }

    /// Returns the segment with its memory.
    pub(crate) fn offer(
        mut self,
        block: impl FnOnce(OwnEntry) -> Result<LeasedBlock>,
    ) -> Result<Phased> {
        let block = block(self.entry.clone())?;
        let fabric = self.fabric.take().ok_or_else(no_number)?;
        fabric.offer(self.segment, block)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(fabric) = self.fabric.take() {
            fabric.withdraw(self.segment);
        }
    }
}

impl Fabric {
    /// Allocates a zeroed segment of shared memory. Local. Errors: [`Error::Budget`], with
    /// everything else unchanged.
    pub fn allocate(&self, bytes: u64) -> Result<Segment> {
        let memory = self.grow_phased(bytes)?;
        memory.publish_as(self.take_number(None)?)?.into_segment()
    }

    /// Reserves a number for a future segment, so that several peers can agree on it. `None` if it
    /// is in use here.
    pub fn reserve(&self, segment: u32) -> Option<Reserved> {
        self.take_number(Some(segment)).ok()
    }

    /// As [`Fabric::allocate`], with a number that is not in use ([`Fabric::free_segments`]), so
    /// that several peers can agree on one.
    pub fn allocate_as(&self, segment: u32, bytes: u64) -> Result<Segment> {
        self.allocate_phased(segment, bytes)?.into_segment()
    }

    /// Turns private memory of this process into a segment: peers access it through the kernel or
    /// by messages. From now on it is read and written through the segment.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let peer = fabric.me();
    /// let segment = fabric.register(vec![1.5_f64; 100])?; // memory that the program already has
    /// let remote = fabric.attach(segment.key())?;
    /// let mut bytes = [0; 8];
    /// remote.get(99 * 8, &mut bytes)?;
    /// assert_eq!(f64::from_le_bytes(bytes), 1.5);
    /// # Ok::<(), samite_fabric::Error>(())
    /// ```
    pub fn register<T: Pod + Send>(&self, elements: Vec<T>) -> Result<Segment> {
        self.take_number(None)?.register(elements)
    }

    /// As [`Fabric::register`], with a number that is not in use.
    pub fn register_as<T: Pod + Send>(&self, segment: u32, elements: Vec<T>) -> Result<Segment> {
        self.take_number(Some(segment))?.register(elements)
    }

    /// Returns which segment numbers are not in use here: one bit each, the lowest first.
    pub fn free_segments(&self) -> Vec<u64> {
        let free = self.0.with(|core| {
            core.sweep();
            let mut free = vec![u64::MAX; SEGMENTS_MAX as usize / 64];
            for segment in core.engine.offered.keys() {
                free[*segment as usize / 64] &= !(1 << (segment % 64));
            }
            free
        });
        free.unwrap_or_else(|| vec![0; SEGMENTS_MAX as usize / 64])
    }

    /// Returns the key of a peer's segment; `None` if there is no such segment. Local on one node,
    /// where the owner's directory has it; otherwise the owner is asked.
    pub fn look_up(&self, peer: PeerId, segment: u32) -> Result<Option<SegmentKey>> {
        let mut core = self.0.lock()?;
        if let Some(error) = core.gone(peer) {
            return Err(error);
        }
        let Reach::Node(owner) = core.engine.route(peer).to else {
            drop(core);
            let asked = self.post_active(peer, LOOK_UP, &segment.to_le_bytes(), true)?;
            let key: Vec<u8> = Handle::new(self.clone(), asked).wait()?;
            let key = key.first_chunk().map(SegmentKey::from_bytes);
            return Ok(key.filter(|key| (key.peer, key.segment) == (peer, segment)));
        };
        let entry = self.0.node.layout.entry(owner, segment);
        let seen = entry.and_then(|entry| entry.look());
        Ok(seen.map(|seen| SegmentKey {
            peer,
            segment,
            incarnation: core.engine.incarnation(peer),
            generation: seen.generation,
            bytes: seen.bytes,
        }))
    }

    /// Reserves a number that is not in use, this one or any, with its entry.
    pub(crate) fn take_number(&self, segment: Option<u32>) -> Result<Reserved> {
        let core = &mut *self.0.lock()?;
        core.sweep();
        let offered = &mut core.engine.offered;
        let is_free = |segment: &u32| !offered.contains_key(segment);
        let mut numbers = 0..SEGMENTS_MAX;
        let found = match segment {
            Some(segment) => Some(segment).filter(|one| numbers.contains(one) && is_free(one)),
            None => numbers.find(is_free),
        };
        let segment = found.ok_or_else(no_number)?;
        let node = &self.0.node;
        let entry = node.layout.own_entry(node.me, segment, &node.holder);
        let entry = entry.ok_or_else(no_number)?;
        let reserved = Offered {
            generation: 0,
            bytes: Access::Withdrawn(0),
            registered: None,
        };
        offered.insert(segment, reserved);
        Ok(Reserved {
            fabric: Some(self.clone()),
            segment,
            entry,
        })
    }

    /// Frees a number.
    pub(crate) fn withdraw(&self, segment: u32) {
        self.0.with(|core| core.offer(segment, None));
    }

    pub(crate) fn own_key(&self, segment: u32, generation: u32, bytes: u64) -> SegmentKey {
        SegmentKey {
            peer: self.me(),
            segment,
            incarnation: self.0.node.incarnation,
            generation,
            bytes,
        }
    }

    /// Prepares one-sided operations on a segment. Local on one node; the key is checked against
    /// the owner's directory. On a path that bypasses the owner, the segment is in use from now on,
    /// until the last clone of this, and of the ranges that it returned, is dropped.
    pub fn attach(&self, key: SegmentKey) -> Result<Remote> {
        let mut core = self.0.lock()?;
        let _looked_up = core.known(key.peer);
        core.engine.lives(key)?;
        match AccessPath::new(&mut core.engine, key) {
            Ok(path) => Ok(Remote::new(self.clone(), key, path)),
            Err(error) => Err(core.engine.named(error)),
        }
    }

    /// As [`Fabric::attach`], but without checking the segment: the owner is asked with each
    /// operation, and not before. So operations on a segment of a lost peer end with an error that
    /// says so.
    pub fn attach_unseen(&self, key: SegmentKey) -> Remote {
        Remote::new(self.clone(), key, AccessPath::Messages)
    }
}

pub(crate) fn no_number() -> Error {
    Error::Memory(format!(
        "this number of a segment is in use, or all {SEGMENTS_MAX} are; free some or make larger ones"
    ))
}

impl Segment {
    pub(crate) fn of(phased: Phased) -> Result<Segment> {
        let bytes = phased.bytes()?;
        Ok(Segment { bytes, phased })
    }

    /// Returns its key.
    pub fn key(&self) -> SegmentKey {
        self.phased.key()
    }

    /// Returns its bytes. A clone of them is a use of the segment: the memory is not reused before
    /// it is dropped.
    pub fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Converts it to a segment whose mode can be changed: to get exclusive access, if nobody uses
    /// it.
    pub fn into_phased(self) -> Phased {
        self.phased
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::refused;
    use crate::transport::Rma;
    use crate::transport::sim::Scenario;

    /// Units on two nodes, with RMA: a key that claims too many bytes gives no access outside the
    /// segment.
    #[test]
    fn a_key_of_too_many_bytes() {
        let ended = Scenario::new(1, 2).with_rma(Rma::Bypasses).run(|fabric| {
            let members = fabric.job()?;
            let segment = fabric.allocate(64)?;
            fabric.barrier(&members)?;
            let other = members[1 - fabric.identity().unit as usize];
            let key = fabric.look_up(other, segment.key().segment)?;
            let key = SegmentKey {
                bytes: 1 << 20,
                ..key.expect("it is offered")
            };
            let remote = fabric.attach(key)?;
            // The remote key has arrived after the second one.
            (0..2).try_for_each(|_| remote.get(0, &mut [0; 8]))?;
            let outside = remote.put(4096, &[1; 8]);
            fabric.barrier(&members)?;
            Ok((refused(key), outside))
        });
        for end in ended {
            let end: Result<_> = end;
            let (refused, outside) = end.unwrap();
            assert_eq!(outside, Err(refused));
        }
    }

    /// A number that is reserved for a future segment names none: on its own node, and on another.
    #[test]
    fn a_reserved_number_is_not_found() {
        let ended = Scenario::new(1, 4).on_nodes(2).run(|fabric| -> Result<_> {
            let members = fabric.job()?;
            let reserved = fabric.reserve(5);
            fabric.barrier(&members)?;
            let found = members.iter().map(|peer| fabric.look_up(*peer, 5));
            let found: Result<Vec<_>> = found.collect();
            fabric.barrier(&members)?;
            drop(reserved);
            found
        });
        for end in ended {
            assert_eq!(end.unwrap(), [None; 4]);
        }
    }
}
