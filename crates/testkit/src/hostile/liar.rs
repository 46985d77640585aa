//! Frames that no correct peer sends.

use crate::fuzz::{Rng, bytes, mutate, word};
use samite_fabric::PeerId;
use samite_fabric::testing::{RawFrame, Tamper};
use samite_fabric::transport::Class;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of remembered words, and of frames of each kind.
const WORDS_MAX: usize = 256;
const FRAMES_MAX: usize = 8;
/// Far longer than any transport accepts.
const BODY_MAX: usize = 1 << 20;
/// Number of kinds of frames: those that exist (1 to 21), and a few that do not.
const KINDS: u8 = 26;

/// Alters what a process sends. Clones share their state: the transport has one, and the test talks
/// to another.
#[derive(Clone, Debug)]
pub struct Liar(Arc<Mutex<Mind>>);

#[derive(Debug)]
struct Mind {
    random: Rng,
    /// Number of frames out of 1000 that are not sent unchanged.
    rate: u32,
    /// By kind, so that rare kinds are altered as often as others.
    frames: Vec<Vec<RawFrame>>,
    words: Vec<u64>,
    peers: Vec<PeerId>,
    lies: u64,
    /// Number of frames still to be sent; in the middle of the next one, the process dies.
    left: Option<u32>,
}

impl Liar {
    /// Creates a liar that changes `rate` of 1000 frames.
    pub fn new(seed: u64, rate: u32) -> Liar {
        Liar(Arc::new(Mutex::new(Mind {
            random: Rng::with_seed(seed),
            rate,
            frames: vec![Vec::new(); KINDS as usize],
            words: Vec::new(),
            peers: Vec::new(),
            lies: 0,
            left: None,
        })))
    }

    fn mind(&self) -> MutexGuard<'_, Mind> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the process in the middle of sending, as by `kill -9`, after this many frames.
    pub fn die_after(&self, frames: u32) {
        self.mind().left = Some(frames);
    }

    /// Returns the number of frames that it has changed or invented.
    pub fn lies(&self) -> u64 {
        self.mind().lies
    }

    /// Returns a frame that was sent before, unchanged or slightly changed, or an invented one.
    pub fn lie(&self) -> RawFrame {
        self.mind().lie()
    }
}

impl Mind {
    /// Remembers the numbers in a frame: a peer knows them.
    fn remember(&mut self, peer: PeerId, frame: &RawFrame) {
        if !self.peers.contains(&peer) {
            self.peers.push(peer);
        }
        let words = frame.inline.as_chunks::<8>().0;
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        for word in std::iter::once(frame.arg).chain(words) {
            let place = self.random.usize(..WORDS_MAX);
            match self.words.get_mut(place) {
                Some(old) => *old = word,
                None => self.words.push(word),
            }
        }
        let Some(frames) = self.frames.get_mut(frame.kind as usize) else {
            return;
        };
        let place = self.random.usize(..FRAMES_MAX);
        match frames.get_mut(place) {
            Some(old) => *old = frame.clone(),
            None => frames.push(frame.clone()),
        }
    }

    /// Returns a word that was seen, one near it, or any word.
    fn word(&mut self) -> u64 {
        let known = self.random.choice(&self.words).copied();
        let random = &mut self.random;
        match (known, random.u32(..6)) {
            (Some(known), 0..=2) => known,
            (Some(known), 3) => known.wrapping_add(random.u64(..17)).wrapping_sub(8),
            (Some(known), 4) => known ^ 1 << random.u32(..64),
            _ => word(random),
        }
    }

    /// Changes one field of a frame.
    fn change(&mut self, frame: &mut RawFrame) {
        match self.random.u32(..12) {
            0 => frame.kind = self.random.u8(..KINDS),
            1 | 2 => frame.arg = self.word(),
            3..=6 if frame.inline.len() >= 8 => {
                let at = self.random.usize(..frame.inline.len() / 8) * 8;
                let word = self.word();
                frame.inline[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            7 => mutate(&mut self.random, &mut frame.inline),
            8 | 9 => mutate(&mut self.random, &mut frame.body),
            10 => {
                let most = if self.random.u32(..8) > 0 {
                    4096
                } else {
                    BODY_MAX
                };
                frame.body = bytes(&mut self.random, most);
            }
            _ => {
                frame.class = match frame.class {
                    Class::Request => Class::Reply,
                    Class::Reply => Class::Request,
                }
            }
        }
    }

    /// Returns a frame of a kind that usually exists, with words that may be meaningful.
    fn invent(&mut self) -> RawFrame {
        let words = self.random.usize(..7);
        let inline: Vec<u8> = (0..words).flat_map(|_| self.word().to_le_bytes()).collect();
        let body = match self.random.u32(..3) {
            0 => bytes(&mut self.random, 600),
            1 => (0..self.random.usize(..64))
                .flat_map(|_| self.word().to_le_bytes())
                .collect(),
            _ => Vec::new(),
        };
        RawFrame {
            class: if self.random.bool() {
                Class::Request
            } else {
                Class::Reply
            },
            kind: self.random.u8(1..KINDS),
            arg: self.word(),
            inline,
            body,
        }
    }

    fn lie(&mut self) -> RawFrame {
        self.lies += 1;
        let known = self.frames.iter().filter(|frames| !frames.is_empty());
        let known: Vec<&Vec<RawFrame>> = known.collect();
        let known = self.random.choice(known);
        let known = known.and_then(|frames| self.random.choice(frames)).cloned();
        match (known, self.random.u32(..8)) {
            (Some(known), 0) => known,
            (Some(mut known), 1..=5) => {
                self.change(&mut known);
                known
            }
            _ => self.invent(),
        }
    }
}

impl Tamper for Liar {
    fn outgoing(&mut self, to: PeerId, frame: RawFrame, send: &mut dyn FnMut(PeerId, RawFrame)) {
        self.mind().outgoing(to, frame, send);
    }

    fn incoming(&mut self, from: PeerId, frame: &RawFrame) -> bool {
        self.mind().remember(from, frame);
        true
    }
}

impl Mind {
    fn outgoing(
        &mut self,
        to: PeerId,
        mut frame: RawFrame,
        send: &mut dyn FnMut(PeerId, RawFrame),
    ) {
        self.remember(to, &frame);
        match &mut self.left {
            Some(0) => crate::die(),
            Some(left) => *left -= 1,
            None => {}
        }
        if self.random.u32(..1000) >= self.rate {
            return send(to, frame);
        }
        let other = self.random.choice(&self.peers).copied().unwrap_or(to);
        match self.random.u32(..10) {
            0 => {}
            1 => {
                send(to, frame.clone());
                send(to, frame);
            }
            2 => send(other, frame),
            3 => {
                send(to, frame);
                send(other, self.lie());
            }
            4 => {
                let lie = self.lie();
                send(to, lie);
                send(to, frame);
            }
            _ => {
                self.lies += 1;
                self.change(&mut frame);
                send(to, frame);
            }
        }
    }
}
