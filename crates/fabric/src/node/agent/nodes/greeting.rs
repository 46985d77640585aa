//! The first bytes between two agents: each proves that it knows the secret of the domain, before
//! anything else of it is accepted. Pure: no IO.
//!
//! ```text
//!   the agent that calls                         the agent that is called
//!     magic, a nonce of 32 bytes ------------>     magic, a nonce of 32 bytes (sent at once, too)
//!     proof of "caller" and both nonces ----->     compares it
//!     <-------------------------------------- 1, proof of "called" and both nonces; or 0
//!     compares it
//! ```
//!
//! A proof is the keyed hash (BLAKE3) of these bytes, with the secret as its key. Whoever listens
//! learns nothing that helps later: nonces are random. What follows is not encrypted, and not
//! protected against someone who can change packets.
//!
//! At most [`FROM_CALLER`] bytes are accepted before the proof.

use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;

const MAGIC: [u8; 8] = *b"samite\0\x01";
const NONCE: usize = 32;
const PROOF: usize = 32;
const HELLO: usize = MAGIC.len() + NONCE;
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
    Refused(Vec<u8>, &'static str),
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
        [&MAGIC[..], &self.mine].concat()
    }

    /// Takes what it understands from the beginning of the bytes that have arrived.
    pub(super) fn hear(&mut self, bytes: &mut Vec<u8>) -> Heard {
        let mut send = Vec::new();
        let Some(theirs) = self.theirs else {
            let begin = bytes.len().min(MAGIC.len());
            if bytes[..begin] != MAGIC[..begin] {
                let why = "it is no agent of this version of Samite";
                return Heard::Refused(send, why);
            }
            let nonce = bytes.get(MAGIC.len()..HELLO);
            let Some(nonce) = nonce.and_then(|nonce| <[u8; NONCE]>::try_from(nonce).ok()) else {
                return Heard::More(send);
            };
            bytes.drain(..HELLO);
            self.theirs = Some(nonce);
            if self.is_caller {
                let proof = self.secret.proof("caller", &nonce, &self.mine);
                send.extend_from_slice(proof.as_bytes());
            }
            return match self.hear(bytes) {
                Heard::More(more) => Heard::More([send, more].concat()),
                Heard::Trusted(more) => Heard::Trusted([send, more].concat()),
                Heard::Refused(more, why) => Heard::Refused([send, more].concat(), why),
            };
        };
        let (role, at) = match self.is_caller {
            true => ("called", 1),
            false => ("caller", 0),
        };
        if self.is_caller && bytes.first().is_some_and(|first| *first != 1) {
            return Heard::Refused(send, "it has another secret");
        }
        let proof = bytes.get(at..at + PROOF);
        let Some(proof) = proof.and_then(|proof| <[u8; PROOF]>::try_from(proof).ok()) else {
            return Heard::More(send);
        };
        bytes.drain(..at + PROOF);
        // In constant time.
        let is_right = self.secret.proof(role, &self.mine, &theirs) == blake3::Hash::from(proof);
        match (self.is_caller, is_right) {
            (true, true) => Heard::Trusted(send),
            (true, false) => Heard::Refused(send, "it has another secret"),
            (false, true) => {
                let proof = self.secret.proof("called", &theirs, &self.mine);
                send.push(1);
                send.extend_from_slice(proof.as_bytes());
                Heard::Trusted(send)
            }
            (false, false) => {
                send.push(0);
                Heard::Refused(send, "it has another secret")
            }
        }
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
                assert!(matches!(end, Heard::Refused(_, "it has another secret")));
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

    proptest! {
        /// No bytes of a stranger are trusted, and none of them make an agent panic.
        #[test]
        fn strangers_are_not_trusted(bytes in prop::collection::vec(any::<u8>(), 0..200),
                                     has_magic: bool, is_caller: bool) {
            let mut side = Greeting::new(secret("a secret of a domain"), is_caller);
            let mut bytes = match has_magic {
                true => [&MAGIC[..], &bytes].concat(),
                false => bytes,
            };
            let heard = side.hear(&mut bytes);
            prop_assert!(!matches!(heard, Heard::Trusted(_)));
        }
    }
}
