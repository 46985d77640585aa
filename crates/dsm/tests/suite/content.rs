//! Contents that differ by chunk, by version, and by the life of the process that wrote them: what
//! is mixed of two versions, or comes back after its writer has died, is not whole.

use samite_dsm::{Chunk, Version};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Outcome, same};

/// Returns a tag that no other version of a chunk has. `number`: below 2^32; this process gives
/// each to one version.
pub(crate) fn tag(number: u64) -> u64 {
    u64::from(std::process::id()) << 32 | number
}

/// Returns the number in a tag.
pub(crate) fn number(tag: u64) -> u64 {
    tag & u64::from(u32::MAX)
}

fn seed(chunk: &str, tag: u64) -> u64 {
    let name = chunk
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    name ^ tag.rotate_left(17)
}

/// Returns the content of the version of a chunk that has that tag.
pub(crate) fn content(chunk: &Chunk<u8>, tag: u64) -> Vec<u8> {
    pattern(seed(chunk.name(), tag), chunk.len() as usize)
}

/// Checks that bytes are the content of the version with that tag; the first one has zeros.
#[track_caller]
pub(crate) fn is_content(
    chunk: &Chunk<u8>,
    (version, tag): (Version, u64),
    bytes: &[u8],
) -> Outcome {
    match version {
        Version(0) => {
            same!(tag, 0);
            same!(bytes.iter().position(|byte| *byte != 0), None);
            Ok(())
        }
        _ => verify(seed(chunk.name(), tag), bytes),
    }
}

/// Checks what is read, a guard or a snapshot.
macro_rules! is_whole {
    ($chunk:expr, $read:expr) => {{
        let read = &$read;
        $crate::content::is_content(&$chunk, (read.version(), read.tag()), read)
    }};
}
pub(crate) use is_whole;
