//! The first bytes between two agents: each proves that it knows the secret of the domain, before
//! anything else of it is accepted. Pure: no IO.
//!
//! ```text
//!   the agent that calls                         the agent that is called
//!     magic, version, a nonce ---------------->    magic, version, a nonce (sent at once, too)
//!     proof of "caller" and both nonces ----->     compares it
//!     <-------------------------------------- 1, proof of "called" and both nonces; or 0
//!     compares it
//! ```
//!
//! The magic and the version are the same bytes in every version, so agents of different ones tell
//! that from something that is no agent. A nonce has 32 bytes.
//!
//! A proof is the keyed hash (BLAKE3) of these bytes, with the secret as its key. Whoever listens
//! learns nothing that helps later: nonces are random. What follows is not encrypted, and not
//! protected against someone who can change packets.
//!
//! At most [`FROM_CALLER`] bytes are accepted before the proof.

use super::connection::Ended;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;

const MAGIC: [u8; 7] = *b"samite\0";
const VERSION: u8 = 1;
const NONCE: usize = 32;
const PROOF: usize = 32;
const HELLO: usize = MAGIC.len() + 1 + NONCE;
/// How the agent that was called answers the proof.
const OTHER_SECRET: u8 = 0;
const TRUSTED: u8 = 1;
/// What a caller sends before it is trusted.
pub(super) const FROM_CALLER: usize = HELLO + PROOF;

/// The secret of a domain. Whoever knows it can join, and then do whatever its user can.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Returns the secret that is this text: at least 16 characters that nobody can guess, as in a
    /// file that only its user may read. White space at both ends does not count.
    ///
    /// # Errors
    /// A sentence: it is too short.
    pub fn of(text: &str) -> Result<Secret, String> {
        let text = text.trim();
        if text.len() < 16 {
            return Err("the secret has fewer than 16 characters".into());
        }
        let context = "samite 2026-11 secret of a domain";
        Ok(Secret(blake3::derive_key(context, text.as_bytes())))
    }

    /// Returns a new random secret, as text.
    pub fn generate() -> String {
        random().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn proof(&self, role: &str, theirs: &[u8; NONCE], mine: &[u8; NONCE]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(role.as_bytes()).update(theirs).update(mine);
        hasher.finalize()
    }
}

fn random() -> [u8; NONCE] {
    let mut bytes = [0; NONCE];
    let mut filled = 0;
    while filled < bytes.len() {
        // It is interrupted only before the kernel has its first random bytes.
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).unwrap_or(0);
    }
    bytes
}

/// One side of a greeting.
#[derive(Debug)]
pub(super) struct Greeting {
    secret: Secret,
    is_caller: bool,
    mine: [u8; NONCE],
    theirs: Option<[u8; NONCE]>,
}

/// What came of the bytes that have arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// More have to arrive; these are sent.
    More(Vec<u8>),
    /// The other one knows the secret; these are sent, and so many bytes were its greeting.
    Trusted(Vec<u8>),
    /// It does not: these are sent, and the connection is closed.
    Refused(Vec<u8>, Ended),
}

impl Greeting {
    pub(super) fn new(secret: Secret, is_caller: bool) -> Greeting {
        Greeting {
            secret,
            is_caller,
            mine: random(),
            theirs: None,
        }
    }

    /// Returns what is sent first.
    pub(super) fn hello(&self) -> Vec<u8> {
        [&MAGIC[..], &[VERSION], &self.mine].concat()
    }

    /// Takes what it understands from the beginning of the bytes that have arrived.
    pub(super) fn hear(&mut self, bytes: &mut Vec<u8>) -> Heard {
        let mut send = Vec::new();
        match self.try_hear(bytes, &mut send) {
            Ok(false) => Heard::More(send),
            Ok(true) => Heard::Trusted(send),
            Err(why) => Heard::Refused(send, why),
        }
    }

    /// Returns whether the other one knows the secret; false if more bytes have to arrive.
    fn try_hear(&mut self, bytes: &mut Vec<u8>, send: &mut Vec<u8>) -> Result<bool, Ended> {
        let theirs = match self.theirs {
            Some(theirs) => theirs,
            None => {
                let Some(theirs) = nonce_of(bytes)? else {
                    return Ok(false);
                };
                bytes.drain(..HELLO);
                if self.is_caller {
                    let proof = self.secret.proof("caller", &theirs, &self.mine);
                    send.extend_from_slice(proof.as_bytes());
                }
                *self.theirs.insert(theirs)
            }
        };
        match self.is_caller {
            true => self.hear_called(bytes, &theirs),
            false => self.hear_caller(bytes, &theirs, send),
        }
    }

    fn hear_caller(
        &self,
        bytes: &mut Vec<u8>,
        theirs: &[u8; NONCE],
        send: &mut Vec<u8>,
    ) -> Result<bool, Ended> {
        let Some(proof) = bytes.first_chunk::<PROOF>().copied() else {
            return Ok(false);
        };
        bytes.drain(..PROOF);
        // In constant time, as hashes are compared.
        if self.secret.proof("caller", &self.mine, theirs) != blake3::Hash::from(proof) {
            send.push(OTHER_SECRET);
            return Err(Ended::OtherSecret);
        }
        send.push(TRUSTED);
        let proof = self.secret.proof("called", theirs, &self.mine);
        send.extend_from_slice(proof.as_bytes());
        Ok(true)
    }

    fn hear_called(&self, bytes: &mut Vec<u8>, theirs: &[u8; NONCE]) -> Result<bool, Ended> {
        match bytes.first() {
            None => return Ok(false),
            Some(&TRUSTED) => {}
            Some(&OTHER_SECRET) => return Err(Ended::OtherSecret),
            Some(_) => return Err(Ended::NoAgent),
        }
        let Some(proof) = bytes[1..].first_chunk::<PROOF>().copied() else {
            return Ok(false);
        };
        bytes.drain(..1 + PROOF);
        match self.secret.proof("called", &self.mine, theirs) == blake3::Hash::from(proof) {
            true => Ok(true),
            false => Err(Ended::OtherSecret),
        }
    }
}

/// Returns the nonce at the beginning of a greeting, if all of it has arrived.
fn nonce_of(bytes: &[u8]) -> Result<Option<[u8; NONCE]>, Ended> {
    let (magic, rest) = bytes.split_at(bytes.len().min(MAGIC.len()));
    if *magic != MAGIC[..magic.len()] {
        return Err(Ended::NoAgent);
    }
    match rest.split_first() {
        Some((&VERSION, nonce)) => Ok(nonce.first_chunk().copied()),
        Some(_) => Err(Ended::OtherVersion),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secret(text: &str) -> Secret {
        Secret::of(text).unwrap()
    }

    /// Lets two agents greet each other, a few bytes at a time.
    fn greet(of_caller: &str, of_called: &str, step: usize) -> [Heard; 2] {
        let mut sides = [
            Greeting::new(secret(of_caller), true),
            Greeting::new(secret(of_called), false),
        ];
        let mut wires = [sides[0].hello(), sides[1].hello()];
        let mut inboxes = [Vec::new(), Vec::new()];
        let mut ends = [None, None];
        while ends.iter().any(Option::is_none) {
            for side in 0..2 {
                let wire = &mut wires[1 - side];
                let some = step.min(wire.len());
                inboxes[side].extend(wire.drain(..some));
                if ends[side].is_some() {
                    continue;
                }
                let heard = sides[side].hear(&mut inboxes[side]);
                let (Heard::More(sent) | Heard::Trusted(sent) | Heard::Refused(sent, _)) = &heard;
                wires[side].extend_from_slice(sent);
                if !matches!(heard, Heard::More(_)) {
                    ends[side] = Some(heard);
                }
            }
        }
        ends.map(Option::unwrap)
    }

    #[test]
    fn who_knows_the_secret_is_trusted() {
        let same = "a secret of a domain";
        for step in [1, 7, 1000] {
            let ends = greet(same, same, step);
            assert!(ends.iter().all(|end| matches!(end, Heard::Trusted(_))));
            let ends = greet(same, "another secret, too", step);
            for end in ends {
                assert!(matches!(end, Heard::Refused(_, Ended::OtherSecret)));
            }
        }
        assert!(Secret::of(" too short      ").is_err());
        assert_ne!(Secret::generate(), Secret::generate());
        assert!(Secret::of(&Secret::generate()).is_ok());
    }

    /// What one agent sends does not serve as an answer to itself.
    #[test]
    fn a_mirror_is_not_trusted() {
        for is_caller in [false, true] {
            let mut side = Greeting::new(secret("a secret of a domain"), is_caller);
            let mut bytes = side.hello();
            let mut heard = side.hear(&mut bytes);
            while let Heard::More(sent) = &heard {
                if sent.is_empty() {
                    break;
                }
                bytes.extend_from_slice(sent);
                heard = side.hear(&mut bytes);
            }
            assert!(!matches!(heard, Heard::Trusted(_)), "{heard:?}");
        }
    }

    /// An agent of another version is told from something that is no agent, by its first bytes.
    #[test]
    fn agents_of_other_versions_are_told_from_others() {
        for is_caller in [false, true] {
            let hear = |bytes: &[u8]| {
                let mut side = Greeting::new(secret("a secret of a domain"), is_caller);
                side.hear(&mut bytes.to_vec())
            };
            let refused = |why| Heard::Refused(Vec::new(), why);
            assert_eq!(hear(b"samite\0"), Heard::More(Vec::new()));
            let other = refused(Ended::OtherVersion);
            assert_eq!(hear(&[&MAGIC[..], &[VERSION + 1]].concat()), other);
            assert_eq!(hear(b"samite\0\xff and more"), other);
            assert_eq!(hear(b"HTTP/1.1 400 Bad Request"), refused(Ended::NoAgent));
            assert_eq!(hear(b"samite "), refused(Ended::NoAgent));
        }
    }

    proptest! {
        /// No bytes of a stranger are trusted, and none of them make an agent panic.
        #[test]
        fn strangers_are_not_trusted(bytes in prop::collection::vec(any::<u8>(), 0..200),
                                     has_magic: bool, is_caller: bool) {
            let mut side = Greeting::new(secret("a secret of a domain"), is_caller);
            let mut bytes = match has_magic {
                true => [&MAGIC[..], &[VERSION], &bytes].concat(),
                false => bytes,
            };
            let heard = side.hear(&mut bytes);
            prop_assert!(!matches!(heard, Heard::Trusted(_)));
        }
    }
}
