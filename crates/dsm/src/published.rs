//! What a server publishes of an open chunk in shared memory: its version, and the content or where
//! that is. Clients read versions there without a message.
//!
//! ```text
//!   0      8          16        24    32        56            64      72
//!   | open | sequence | version | tag | segment | where it is | chunk | the page of an owner ..
//!   104
//!   | content of a short one ..
//! ```
//! The first word is described in [`crate::service`]. The rest is a sequence lock: the server makes
//! the sequence odd, writes, and makes it even again; a reader that has seen two different
//! sequences, or an odd one, has read nothing. (Hans Boehm, Can Seqlocks Get Along With Programming
//! Language Memory Models?, MSPC 2012.)
//!
//! A version is published before the chunk is opened, and withdrawn when it is closed, before
//! anything else is committed. So what is read here is the present version, as long as the server
//! lives, and where there is a lease, until its end. The place may serve
//! another chunk later, so it says of which one it is.
//!
//! If a process of this node owns the chunk, the later versions are in its page, and here is where
//! that is ([`crate::page`]).

use crate::protocol::{ChunkId, Content, INLINE, Version};
use crate::service::LINE;
use samite_fabric::SegmentKey;
use samite_mem::SharedBytes;
use std::sync::atomic::{Ordering, fence};

const SEQUENCE: u64 = 8;
const VERSION: u64 = 16;
const TAG: u64 = 24;
const SEGMENT: u64 = 32;
const KIND: u64 = 56;
const CHUNK: u64 = 64;
/// The segment of a page, and its offset there plus 1; 0: there is none.
const PAGE: u64 = 72;
const PAGE_AT: u64 = 96;
const CONTENT: u64 = 104;

/// What the word at `KIND` says.
const NOTHING: u64 = 0;
const ZEROS: u64 = 1;
const IN_SEGMENT: u64 = 2;
const HERE: u64 = 3;

/// How often a reader tries that meets a writer.
const TRIES: u32 = 16;

/// Returns the bytes that a chunk of that length needs here.
pub(crate) fn bytes_for(bytes: u64) -> u64 {
    let content = if bytes <= INLINE { bytes } else { 0 };
    (CONTENT + content).next_multiple_of(LINE)
}

/// What is published: a version, its tag and its content.
pub(crate) type Published = (Version, u64, Content);

/// Publishes a version at `place`. Content for which there is no room is not published.
pub(crate) fn publish(place: &SharedBytes, chunk: ChunkId, (version, tag, content): &Published) {
    let kind = match content {
        Content::Zeros => ZEROS,
        Content::Segment(_) => IN_SEGMENT,
        Content::Inline(bytes) if place.contains(CONTENT, bytes.len() as u64) => HERE,
        Content::Inline(_) => NOTHING,
    };
    write(place, || {
        // ORDERING: between the two sequences.
        place.u64(VERSION).store(version.0, Ordering::Relaxed);
        place.u64(TAG).store(*tag, Ordering::Relaxed);
        place.u64(CHUNK).store(chunk.0, Ordering::Relaxed);
        place.u64(KIND).store(kind, Ordering::Relaxed);
        match content {
            Content::Segment(key) => place.write(SEGMENT, &key.to_bytes()),
            Content::Inline(bytes) if kind == HERE => place.write(CONTENT, bytes),
            _ => {}
        }
    });
}

/// Withdraws what was published.
pub(crate) fn withdraw(place: &SharedBytes) {
    // ORDERING: between the two sequences.
    write(place, || {
        place.u64(KIND).store(NOTHING, Ordering::Relaxed);
        place.u64(PAGE_AT).store(0, Ordering::Relaxed);
    });
}

/// Publishes where the page of the process is that owns the chunk.
pub(crate) fn publish_page(place: &SharedBytes, chunk: ChunkId, (key, at): (SegmentKey, u64)) {
    write(place, || {
        // ORDERING: between the two sequences.
        place.u64(CHUNK).store(chunk.0, Ordering::Relaxed);
        place.write(PAGE, &key.to_bytes());
        place
            .u64(PAGE_AT)
            .store(at.saturating_add(1), Ordering::Relaxed);
    });
}

fn write(place: &SharedBytes, change: impl FnOnce()) {
    let sequence = place.u64(SEQUENCE);
    // ORDERING: only this process writes.
    let before = sequence.load(Ordering::Relaxed);
    sequence.store(before | 1, Ordering::Relaxed);
    // ORDERING: who sees a change sees the odd sequence.
    fence(Ordering::Release);
    change();
    // ORDERING: who sees the even sequence sees the changes.
    sequence.store((before | 1).wrapping_add(1), Ordering::Release);
}

/// Returns what is published at `place` of a chunk of that length; `None` if nothing is.
pub(crate) fn read(place: &SharedBytes, chunk: ChunkId, bytes: u64) -> Option<Published> {
    between_writes(place, || version_at(place, chunk, bytes))
}

/// Returns where the page of the process is that owns the chunk; `None` if there is none.
pub(crate) fn read_page(place: &SharedBytes, chunk: ChunkId) -> Option<(SegmentKey, u64)> {
    between_writes(place, || {
        // ORDERING: what was read counts only if the sequence is the same afterwards.
        let word = |at| place.u64(at).load(Ordering::Relaxed);
        let at = word(PAGE_AT).checked_sub(1)?;
        let mut key = [0; 24];
        place.read(PAGE, &mut key);
        (word(CHUNK) == chunk.0).then(|| (SegmentKey::from_bytes(&key), at))
    })
}

/// Reads when the server does not write.
fn between_writes<V>(place: &SharedBytes, read: impl Fn() -> Option<V>) -> Option<V> {
    let mut tries = (0..TRIES).filter_map(|_| unless_written(place, &read));
    tries.next().flatten()
}

/// Reads; `None` if the server was writing.
fn unless_written<V>(place: &SharedBytes, read: impl Fn() -> V) -> Option<V> {
    let sequence = place.u64(SEQUENCE);
    // ORDERING: the changes before it are visible.
    let before = sequence.load(Ordering::Acquire);
    if !before.is_multiple_of(2) {
        std::hint::spin_loop();
        return None;
    }
    let found = read();
    // ORDERING: the reads above come before the one below.
    fence(Ordering::Acquire);
    let after = sequence.load(Ordering::Relaxed);
    (before == after).then_some(found)
}

fn version_at(place: &SharedBytes, chunk: ChunkId, bytes: u64) -> Option<Published> {
    // ORDERING: what was read counts only if the sequence is the same afterwards.
    let word = |at| place.u64(at).load(Ordering::Relaxed);
    let (version, tag) = (Version(word(VERSION)), word(TAG));
    let content = match word(KIND) {
        _ if word(CHUNK) != chunk.0 => None,
        ZEROS => Some(Content::Zeros),
        IN_SEGMENT => {
            let mut key = [0; 24];
            place.read(SEGMENT, &mut key);
            Some(Content::Segment(SegmentKey::from_bytes(&key)))
        }
        HERE if bytes <= INLINE && place.contains(CONTENT, bytes) => {
            let mut content = vec![0; bytes as usize];
            place.read(CONTENT, &mut content);
            Some(Content::Inline(content))
        }
        _ => None,
    };
    content.map(|content| (version, tag, content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::PeerId;
    use std::sync::atomic::AtomicBool;

    const CHUNK: ChunkId = ChunkId(7);

    fn place(bytes: u64) -> SharedBytes {
        SharedBytes::adopt(vec![0_u64; (bytes_for(bytes) / 8) as usize])
    }

    #[test]
    fn what_is_published_is_read_until_it_is_withdrawn() {
        let key = SegmentKey {
            peer: PeerId::new(3, 7),
            segment: 5,
            incarnation: 2,
            generation: 9,
            bytes: 1 << 40,
        };
        let contents = [
            (64, Content::Inline((0..64).collect())),
            (1 << 40, Content::Segment(key)),
            (100, Content::Zeros),
            (0, Content::Inline(Vec::new())),
        ];
        for (bytes, content) in contents {
            let place = place(bytes);
            assert_eq!(read(&place, CHUNK, bytes), None);
            let published = (Version(8), 9, content);
            publish(&place, CHUNK, &published);
            assert_eq!(read(&place, CHUNK, bytes), Some(published));
            assert_eq!(read(&place, ChunkId(8), bytes), None);
            withdraw(&place);
            assert_eq!(read(&place, CHUNK, bytes), None);
        }
    }

    #[test]
    fn a_page_is_found_until_it_is_withdrawn() {
        let key = SegmentKey {
            peer: PeerId::new(3, 7),
            segment: 5,
            incarnation: 2,
            generation: 9,
            bytes: 1 << 18,
        };
        let place = place(64);
        assert_eq!(read_page(&place, CHUNK), None);
        publish_page(&place, CHUNK, (key, 0));
        assert_eq!(read_page(&place, CHUNK), Some((key, 0)));
        assert_eq!(read_page(&place, ChunkId(8)), None);
        assert_eq!(read(&place, CHUNK, 64), None);
        withdraw(&place);
        assert_eq!(read_page(&place, CHUNK), None);
    }

    /// A place that was made for a chunk whose length was not known.
    #[test]
    fn content_without_room_is_not_published() {
        let place = place(INLINE + 1);
        let content = Content::Inline(vec![1; 64]);
        publish(&place, CHUNK, &(Version(1), 0, content));
        assert_eq!(read(&place, CHUNK, 64), None);
    }

    #[test]
    fn a_reader_never_sees_two_versions_mixed() {
        const BYTES: u64 = 512;
        let (place, is_over) = (place(BYTES), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for version in 1..100_000_u64 {
                    let content = Content::Inline(vec![version as u8; BYTES as usize]);
                    publish(&place, CHUNK, &(Version(version), !version, content));
                    if version.is_multiple_of(3) {
                        withdraw(&place);
                    }
                }
                is_over.store(true, Ordering::Release);
            });
            let mut last = Version::default();
            while !is_over.load(Ordering::Acquire) {
                let Some((version, tag, content)) = read(&place, CHUNK, BYTES) else {
                    continue;
                };
                assert_eq!(tag, !version.0);
                let expected = vec![version.0 as u8; BYTES as usize];
                assert_eq!(content, Content::Inline(expected));
                assert!(version >= last);
                last = version;
            }
        });
    }
}
