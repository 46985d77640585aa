//! Content that is copied into memory of this server part by part, so that it answers others
//! meanwhile: also servers that renew their leases.

use super::memory::{Arrived, Beginning, Memory};
use crate::protocol::INLINE;
use samite_fabric::{Growing, Handle, Owned, Remote, Result};
use std::collections::BTreeMap;

/// Bytes that are copied at a time: some milliseconds.
const PART: usize = if cfg!(test) { 1 << 16 } else { 16 << 20 };

/// Where content is copied from.
#[derive(Debug)]
pub(super) enum Source {
    /// Memory of another server, that is mapped here and is read.
    Mapped(Remote),
    Bytes(Vec<u8>),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Source::Mapped(remote) => remote.readable().map_or(&[], |bytes| bytes.as_slice()),
            Source::Bytes(bytes) => bytes,
        }
    }
}

/// A copy under way. To be [ended](Memory::end_copy) if it is not completed.
#[derive(Debug)]
pub(super) struct Copying {
    from: Source,
    to: To,
    /// The bytes that are copied.
    done: usize,
}

#[derive(Debug)]
enum To {
    Grows(Growing),
    There(Owned),
    /// It is complete, or has failed.
    Nowhere,
}

/// Returns all of these, those first that come after the last one of which a part was copied: so
/// each has its turn.
pub(super) fn in_turn<'a, K: Ord, V>(
    all: &'a mut BTreeMap<K, V>,
    last: Option<&K>,
) -> Vec<(&'a K, &'a mut V)> {
    let mut all: Vec<_> = all.iter_mut().collect();
    let first = all.partition_point(|(key, _)| Some(*key) <= last);
    all.rotate_left(first);
    all
}

/// Content on its way.
#[derive(Debug)]
pub(super) enum Coming {
    Fetched(Handle<Vec<u8>>),
    Copied(Box<Copying>),
}

impl Coming {
    /// Goes on, unless another one has been copied in this turn. Returns the content once it is
    /// there.
    pub(super) fn step(
        &mut self,
        memory: &mut Memory,
        has_copied: &mut bool,
    ) -> Option<Result<Arrived>> {
        if let Coming::Fetched(content) = self {
            let begun = content.test()?.and_then(|bytes| match bytes.len() as u64 {
                ..=INLINE => Ok(Err(Arrived::inline(bytes))),
                _ => memory.begin_copy(Source::Bytes(bytes)).map(Ok),
            });
            match begun {
                Ok(Ok(copying)) => *self = Coming::Copied(Box::new(copying)),
                Ok(Err(arrived)) => return Some(Ok(arrived)),
                Err(error) => return Some(Err(error)),
            }
        }
        match self {
            Coming::Copied(copying) if !std::mem::replace(has_copied, true) => {
                memory.copy_part(copying).transpose()
            }
            _ => None,
        }
    }

    /// Gives it up.
    pub(super) fn end(self, memory: &mut Memory) {
        if let Coming::Copied(copying) = self {
            memory.end_copy(*copying);
        }
    }
}

impl Memory {
    /// Begins to copy content.
    pub(super) fn begin_copy(&mut self, from: Source) -> Result<Copying> {
        let to = match self.begin(from.bytes().len() as u64)? {
            Beginning::There(segment) => To::There(self.owned(segment)?),
            Beginning::Grows(growing) => To::Grows(growing),
        };
        Ok(Copying { from, to, done: 0 })
    }

    /// Allocates memory for the copy, or copies the next part. Returns the content once all is
    /// there.
    pub(super) fn copy_part(&mut self, copying: &mut Copying) -> Result<Option<Arrived>> {
        let mut owned = match std::mem::replace(&mut copying.to, To::Nowhere) {
            To::Grows(mut growing) => match growing.step()? {
                true => {
                    let segment = self.grown(growing)?;
                    self.owned(segment)?
                }
                false => {
                    copying.to = To::Grows(growing);
                    return Ok(None);
                }
            },
            To::There(owned) => owned,
            To::Nowhere => return Ok(None),
        };
        let rest = &copying.from.bytes()[copying.done..];
        let part = &rest[..rest.len().min(PART)];
        let to = &mut owned.memory_mut().as_mut_slice::<u8>()[copying.done..];
        to[..part.len()].copy_from_slice(part);
        copying.done += part.len();
        if part.len() < rest.len() {
            copying.to = To::There(owned);
            return Ok(None);
        }
        self.given(owned).map(|segment| Some(Arrived::own(segment)))
    }

    /// Copies all at once.
    pub(super) fn copy(&mut self, bytes: Vec<u8>) -> Result<Arrived> {
        let mut copying = self.begin_copy(Source::Bytes(bytes))?;
        loop {
            if let Some(arrived) = self.copy_part(&mut copying)? {
                return Ok(arrived);
            }
        }
    }

    /// Gives up a copy that nobody needs.
    fn end_copy(&mut self, copying: Copying) {
        if let To::There(owned) = copying.to
            && let Ok(segment) = self.given(owned)
        {
            self.set_free(segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ChunkId, Content};
    use samite_fabric::{Config, Fabric, Identity};
    use samite_testkit::pattern::pattern;

    const PARTS: usize = 7;

    fn memory() -> (Fabric, Memory) {
        let fabric = Fabric::alone(Identity::by_hand("copying"), Config::default());
        let fabric = fabric.expect("a domain of its own");
        let memory = Memory::new(&fabric);
        (fabric, memory)
    }

    /// As many turns as parts, also into memory that is used again; other work comes between them.
    #[test]
    fn long_content_is_copied_in_parts() {
        let (fabric, mut memory) = memory();
        let chunk = ChunkId(1);
        memory.create(chunk);
        for seed in 1..=3 {
            let content = pattern(seed, PARTS * PART - 5);
            let source = Source::Bytes(content.clone());
            let mut copying = memory.begin_copy(source).expect("there is memory");
            let mut turns = 1;
            let arrived = loop {
                match memory.copy_part(&mut copying).expect("it is copied") {
                    Some(arrived) => break arrived,
                    None => turns += 1,
                }
            };
            assert!(turns >= PARTS, "{turns}");
            memory.adopt_from(chunk, arrived);
            let Content::Segment(key) = memory.content(chunk) else {
                unreachable!("it is long");
            };
            let mut found = vec![0; content.len()];
            let remote = fabric.attach(key).expect("it is read");
            remote.get(0, &mut found).expect("it is read");
            assert!(found == content);
        }
        assert_eq!(memory.used(), 2 * (PARTS * PART - 5) as u64);
    }

    #[test]
    fn a_copy_that_is_given_up_gives_its_memory_back() {
        let (_fabric, mut memory) = memory();
        for _ in 0..5 {
            let source = Source::Bytes(vec![1; PARTS * PART]);
            let mut copying = memory.begin_copy(source).expect("there is memory");
            for _ in 0..3 {
                let copied = memory.copy_part(&mut copying).expect("it is copied");
                assert!(copied.is_none());
            }
            memory.end_copy(copying);
        }
        assert!(memory.used() <= (PARTS * PART) as u64);
    }

    #[test]
    fn each_copy_has_its_turn() {
        let mut all: BTreeMap<u32, ()> = [1, 3, 5].map(|key| (key, ())).into();
        let mut keys = |last: Option<u32>| {
            let all = in_turn(&mut all, last.as_ref()).into_iter();
            all.map(|(key, ())| *key).collect::<Vec<_>>()
        };
        assert_eq!(keys(None), [1, 3, 5]);
        assert_eq!(keys(Some(1)), [3, 5, 1]);
        assert_eq!(keys(Some(5)), [1, 3, 5]);
        // The last one is complete.
        assert_eq!(keys(Some(4)), [5, 1, 3]);
        assert!(in_turn(&mut BTreeMap::<u32, ()>::new(), Some(&1)).is_empty());
    }
}
