//! The first bytes between two agents: each proves that it knows the secret of the domain, before
//! anything else of it is accepted. Pure: no IO.
//!
//! ```text
//!   the agent that calls                         the agent that is called
//!     magic, version, a nonce ---------------->    magic, version, a nonce (sent at once, too)
//!     the address that it called,
//!     proof of "caller" ---------------------->    compares both
//!     <---------------------------------- 1, proof of "called"; or why not: 0, 2
//!     compares it
//!     messages with codes <------------------>     messages with codes
//! ```
//!
//! The magic and the version are the same bytes in every version, so agents of different ones tell
//! that from something that is no agent. A nonce has 32 bytes.
//!
//! A proof is the keyed hash (BLAKE3) of its name, both nonces and the address, with the secret as
//! its key. Whoever listens learns nothing that helps later: nonces are random. The key of the
//! [codes](super::session) is another hash of the same bytes.
//!
//! The address is the one that the caller has called, and the one at which the called agent
//! listens: they are the same. So an agent that calls an address which someone else has now is not
//! passed on to another agent. Someone on the way between two agents can pass their greeting on,
//! but has no key, and can neither change what follows nor add to it. An agent that is reached by
//! another address than its own, as behind a translation of addresses or a forwarded port, is
//! refused. What follows is not encrypted.
//!
//! At most [`FROM_CALLER`] bytes are accepted before the proof.

use super::connection::Ended;
use super::session::Session;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

const MAGIC: [u8; 7] = *b"samite\0";
const VERSION: u8 = 2;
const NONCE: usize = 32;
const ADDRESS: usize = 18;
const PROOF: usize = 32;
const HELLO: usize = MAGIC.len() + 1 + NONCE;
/// How the agent that was called answers the proof.
const OTHER_SECRET: u8 = 0;
const TRUSTED: u8 = 1;
const OTHER_ADDRESS: u8 = 2;
/// What a caller sends before it is trusted.
pub(super) const FROM_CALLER: usize = HELLO + ADDRESS + PROOF;

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
        random::<32>()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// Returns an address as both sides write it. Each machine has its own numbers of interfaces, so
/// these do not count.
fn bytes_of(address: SocketAddr) -> [u8; ADDRESS] {
    let ip = match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; ADDRESS];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

/// Returns bytes that nobody can guess.
pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
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
    /// The address of the called agent.
    address: [u8; ADDRESS],
    mine: [u8; NONCE],
    theirs: Option<[u8; NONCE]>,
}

/// What came of the bytes that have arrived.
#[derive(Debug)]
pub(super) enum Heard {
    /// More have to arrive; these are sent.
    More(Vec<u8>),
    /// The other one knows the secret: these are sent, and then messages.
    Trusted(Vec<u8>, Session),
    /// It does not, or cannot be talked to: these are sent, and the connection is closed.
    Refused(Vec<u8>, Ended),
}

impl Greeting {
    /// Begins a greeting. `address` is the one that this agent calls, or at which it listens.
    pub(super) fn new(secret: Secret, is_caller: bool, address: SocketAddr) -> Greeting {
        Greeting {
            secret,
            is_caller,
            address: bytes_of(address),
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
            Ok(None) => Heard::More(send),
            Ok(Some(session)) => Heard::Trusted(send, session),
            Err(why) => Heard::Refused(send, why),
        }
    }

    /// Returns the session, `None` if more bytes have to arrive.
    fn try_hear(
        &mut self,
        bytes: &mut Vec<u8>,
        send: &mut Vec<u8>,
    ) -> Result<Option<Session>, Ended> {
        let theirs = match self.theirs {
            Some(theirs) => theirs,
            None => {
                let Some(theirs) = nonce_of(bytes)? else {
                    return Ok(None);
                };
                bytes.drain(..HELLO);
                if self.is_caller {
                    send.extend_from_slice(&self.address);
                    send.extend_from_slice(self.hash("caller", &theirs).as_bytes());
                }
                *self.theirs.insert(theirs)
            }
        };
        let is_trusted = match self.is_caller {
            true => self.hear_called(bytes, &theirs)?,
            false => self.hear_caller(bytes, &theirs, send)?,
        };
        let session = || Session::new(self.hash("session", &theirs).into(), self.is_caller);
        Ok(is_trusted.then(session))
    }

    /// Returns a hash that only those know who have the secret.
    fn hash(&self, name: &str, theirs: &[u8; NONCE]) -> blake3::Hash {
        let (of_caller, of_called) = match self.is_caller {
            true => (&self.mine, theirs),
            false => (theirs, &self.mine),
        };
        let mut hasher = blake3::Hasher::new_keyed(&self.secret.0);
        hasher.update(name.as_bytes()).update(&self.address);
        hasher.update(of_caller).update(of_called);
        hasher.finalize()
    }

    fn hear_caller(
        &self,
        bytes: &mut Vec<u8>,
        theirs: &[u8; NONCE],
        send: &mut Vec<u8>,
    ) -> Result<bool, Ended> {
        if bytes.len() < ADDRESS + PROOF {
            return Ok(false);
        }
        let said: Vec<u8> = bytes.drain(..ADDRESS + PROOF).collect();
        let (address, proof) = said.split_at(ADDRESS);
        if *address != self.address {
            send.push(OTHER_ADDRESS);
            return Err(Ended::OtherAddress);
        }
        // In constant time, as hashes are compared.
        if self.hash("caller", theirs) != *proof {
            send.push(OTHER_SECRET);
            return Err(Ended::OtherSecret);
        }
        send.push(TRUSTED);
        send.extend_from_slice(self.hash("called", theirs).as_bytes());
        Ok(true)
    }

    fn hear_called(&self, bytes: &mut Vec<u8>, theirs: &[u8; NONCE]) -> Result<bool, Ended> {
        match bytes.first() {
            None => return Ok(false),
            Some(&TRUSTED) => {}
            Some(&OTHER_SECRET) => return Err(Ended::OtherSecret),
            Some(&OTHER_ADDRESS) => return Err(Ended::OtherAddress),
            Some(_) => return Err(Ended::NoAgent),
        }
        if bytes.len() < 1 + PROOF {
            return Ok(false);
        }
        let said: Vec<u8> = bytes.drain(..1 + PROOF).collect();
        match self.hash("called", theirs) == said[1..] {
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

    const AT: &str = "10.0.0.7:7000";

    fn greeting(is_caller: bool) -> Greeting {
        let secret = secret("a secret of a domain");
        Greeting::new(secret, is_caller, AT.parse().unwrap())
    }

    /// Lets two agents greet each other, a few bytes at a time.
    fn greet(of_caller: (&str, &str), of_called: (&str, &str), step: usize) -> [Heard; 2] {
        let mut sides =
            [(of_caller, true), (of_called, false)].map(|((text, address), is_caller)| {
                Greeting::new(secret(text), is_caller, address.parse().unwrap())
            });
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
                let (Heard::More(sent) | Heard::Trusted(sent, _) | Heard::Refused(sent, _)) =
                    &heard;
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
        let same = ("a secret of a domain", AT);
        for step in [1, 7, 1000] {
            let ends = greet(same, same, step);
            let [Heard::Trusted(_, mut one), Heard::Trusted(_, mut other)] = ends else {
                panic!("{ends:?}");
            };
            let (mut bytes, mut messages) = (Vec::new(), Vec::new());
            one.seal(b"a message", &mut bytes);
            let opened = other.open(&mut bytes, |message| messages.push(message));
            assert_eq!((opened, messages), (Ok(()), vec![b"a message".to_vec()]));
            let ends = greet(same, ("another secret, too", AT), step);
            for end in ends {
                assert!(matches!(end, Heard::Refused(_, Ended::OtherSecret)));
            }
        }
        assert!(Secret::of(" too short      ").is_err());
        assert_ne!(Secret::generate(), Secret::generate());
        assert!(Secret::of(&Secret::generate()).is_ok());
    }

    /// Someone who has the address that an agent calls cannot pass its greeting on to an agent
    /// that listens elsewhere.
    #[test]
    fn a_greeting_that_is_passed_on_is_refused() {
        let secret = "a secret of a domain";
        let trusts = |dialled: &str, own: &str| {
            let ends = greet((secret, dialled), (secret, own), 1000);
            ends.map(|end| match end {
                Heard::Trusted(..) => true,
                Heard::Refused(_, Ended::OtherAddress) => false,
                end => panic!("{end:?}"),
            })
        };
        for other in ["10.0.0.8:7000", "10.0.0.7:7001", "[fe80::7]:7000"] {
            assert_eq!(trusts(other, AT), [false, false], "{other}");
        }
        // The same address, written in another way.
        assert_eq!(trusts("[::ffff:10.0.0.7]:7000", AT), [true, true]);
        assert_eq!(trusts("[fe80::7%2]:7000", "[fe80::7%3]:7000"), [true, true]);
    }

    /// An address that someone changes on the way does not fit the proof.
    #[test]
    fn the_proof_is_of_the_address() {
        let secret = || secret("a secret of a domain");
        let mut caller = Greeting::new(secret(), true, "10.0.0.8:7000".parse().unwrap());
        let mut called = Greeting::new(secret(), false, AT.parse().unwrap());
        let mut to_called = caller.hello();
        let Heard::More(proof) = caller.hear(&mut called.hello()) else {
            panic!("the caller waits for a proof");
        };
        to_called.extend(bytes_of(AT.parse().unwrap()));
        to_called.extend(&proof[ADDRESS..]);
        let heard = called.hear(&mut to_called);
        assert!(
            matches!(heard, Heard::Refused(_, Ended::OtherSecret)),
            "{heard:?}"
        );
    }

    /// What one agent sends does not serve as an answer to itself.
    #[test]
    fn a_mirror_is_not_trusted() {
        let mut caller = greeting(true);
        let mut bytes = caller.hello();
        let Heard::More(sent) = caller.hear(&mut bytes) else {
            panic!("it goes on after its own hello");
        };
        let mut answer = [&[TRUSTED], &sent[ADDRESS..]].concat();
        let heard = caller.hear(&mut answer);
        assert!(matches!(heard, Heard::Refused(..)), "{heard:?}");
        // Nor does an agent prove anything before its caller has.
        let mut called = greeting(false);
        let heard = called.hear(&mut called.hello());
        assert!(
            matches!(&heard, Heard::More(sent) if sent.is_empty()),
            "{heard:?}"
        );
    }

    /// An agent of another version is told from something that is no agent, by its first bytes.
    #[test]
    fn agents_of_other_versions_are_told_from_others() {
        for is_caller in [false, true] {
            let hear = |bytes: &[u8]| {
                let mut side = greeting(is_caller);
                match side.hear(&mut bytes.to_vec()) {
                    Heard::Refused(_, why) => Err(why),
                    Heard::More(_) | Heard::Trusted(..) => Ok(()),
                }
            };
            let other = Err(Ended::OtherVersion);
            assert_eq!(hear(b"samite\0"), Ok(()));
            assert_eq!(hear(&[&MAGIC[..], &[VERSION + 1]].concat()), other);
            assert_eq!(hear(b"samite\0\xff and more"), other);
            assert_eq!(hear(b"HTTP/1.1 400 Bad Request"), Err(Ended::NoAgent));
            assert_eq!(hear(b"samite "), Err(Ended::NoAgent));
        }
    }

    proptest! {
        /// No bytes of a stranger are trusted, and none of them make an agent panic.
        #[test]
        fn strangers_are_not_trusted(bytes in prop::collection::vec(any::<u8>(), 0..200),
                                     has_magic: bool, is_caller: bool) {
            let mut side = greeting(is_caller);
            let mut bytes = match has_magic {
                true => [&MAGIC[..], &[VERSION], &bytes].concat(),
                false => bytes,
            };
            let heard = side.hear(&mut bytes);
            prop_assert!(!matches!(heard, Heard::Trusted(..)));
        }
    }
}
