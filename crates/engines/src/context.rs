//! What a running kernel sees, and what it asks for.

use crate::{Grants, Rights, Trap};
use samite_mem::SharedBytes;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU64};
use std::time::Duration;

/// Longest payload of a call, a forwarded call or a reply, in bytes.
pub const PAYLOAD_MAX: u64 = 64 << 10;

/// What a call may use. Its parts travel with the call and only shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long it may run on one unit, until it moves on or ends. Meanwhile other calls of that
    /// unit wait. It travels as whole milliseconds, at most 65,535: a fraction is cut off, and more
    /// is shortened.
    pub run: Duration,
    /// How long it may run on all units together. The time is charged by a clock of a few
    /// milliseconds. It travels as whole milliseconds, at most 65,535: a fraction is cut off, and
    /// more is shortened.
    pub time: Duration,
    /// How often it may still move to another unit. Each call that it starts costs one, too, and
    /// all of them share what is left: it and the calls that come of it are at most `hops` + 1.
    pub hops: u16,
    /// The granted segments that it may use, as bits.
    pub grants: u16,
    /// Whether it may start further calls.
    pub may_spawn: bool,
    /// Whether it may make new code.
    pub may_define: bool,
}

impl Limits {
    /// The most messages that one call of a kernel may send.
    pub const EFFECTS: usize = 64;
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            run: Duration::from_millis(10),
            time: Duration::from_secs(10),
            hops: u16::MAX,
            grants: u16::MAX,
            may_spawn: true,
            may_define: true,
        }
    }
}

/// What a kernel has asked for. The bytes are in its [`Context`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// To go on at another unit, in the place of this call.
    Forward {
        /// The unit.
        unit: u32,
        /// The entry.
        entry: u8,
        /// Its payload.
        payload: Range<usize>,
    },
    /// A further call, whose result nobody gets.
    Spawn {
        /// The unit.
        unit: u32,
        /// The entry.
        entry: u8,
        /// The code, if it is not the running one: which of the definitions of this call.
        code: Option<usize>,
        /// Its payload.
        payload: Range<usize>,
    },
    /// New code, in WebAssembly; further effects name it by its position among definitions.
    Define {
        /// The module.
        code: Range<usize>,
    },
}

/// What a running kernel sees, and what it asks for; reused from call to call.
///
/// The first trap ends the call, also if a function of the program handles the error: from then on
/// each method that can fail does nothing but return that trap, and whatever the function returns,
/// the call ends with it. So the same kernel ends alike as WebAssembly, which is stopped there.
#[derive(Debug)]
pub struct Context {
    me: u32,
    units: u32,
    grants: Grants,
    limits: Limits,
    /// The segments that the call may still use, as bits: none after a trap.
    reach: AtomicU16,
    /// Why the call ends.
    trap: OnceLock<Trap>,
    origin: u32,
    /// The bytes of all effects and of the reply.
    bytes: Vec<u8>,
    effects: Vec<Effect>,
    definitions: usize,
    reply: Option<Range<usize>>,
    forwards: bool,
}

impl Context {
    /// Creates the context of a unit, by its number among `units`, with what it grants.
    pub fn new(me: u32, units: u32, grants: Grants) -> Context {
        Context {
            me,
            units,
            grants,
            limits: Limits::default(),
            reach: AtomicU16::new(Limits::default().grants),
            trap: OnceLock::new(),
            origin: me,
            bytes: Vec::new(),
            effects: Vec::new(),
            definitions: 0,
            reply: None,
            forwards: false,
        }
    }

    /// Prepares it for a call from unit `origin` with these limits. At most `kept` bytes of memory
    /// of earlier calls are kept.
    pub fn begin(&mut self, limits: Limits, origin: u32, kept: u64) {
        (self.limits, self.origin) = (limits, origin);
        *self.reach.get_mut() = limits.grants;
        self.trap.take();
        self.bytes.clear();
        self.bytes.shrink_to(kept.min(usize::MAX as u64) as usize);
        self.effects.clear();
        self.definitions = 0;
        (self.reply, self.forwards) = (None, false);
    }

    /// Replaces the granted segments and the number of units.
    pub fn renew(&mut self, units: u32, grants: Grants) {
        (self.units, self.grants) = (units, grants);
    }

    /// Returns the unit on which it runs.
    #[inline]
    pub fn me(&self) -> u32 {
        self.me
    }

    /// Returns the number of units.
    #[inline]
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Returns the unit that called it first, and gets the reply.
    #[inline]
    pub fn origin(&self) -> u32 {
        self.origin
    }

    /// Returns what is left of its limits.
    #[inline]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the granted segments.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Returns what the kernel has asked for, in order.
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// Returns bytes of an effect.
    #[inline]
    pub fn bytes(&self, range: &Range<usize>) -> &[u8] {
        &self.bytes[range.clone()]
    }

    /// Returns its reply, if it has replied.
    #[inline]
    pub fn replied(&self) -> Option<&[u8]> {
        self.reply.as_ref().map(|range| self.bytes(range))
    }

    /// Returns whether it goes on elsewhere.
    #[inline]
    pub fn is_forwarded(&self) -> bool {
        self.forwards
    }

    /// Ends the call with the first trap, which is returned.
    #[cold]
    pub(crate) fn stop(&self, trap: Trap) -> Trap {
        // ORDERING: Relaxed: the bits alone. Threads of a function that share the context may still
        // make accesses that began before.
        self.reach.store(0, Relaxed);
        self.trap.get_or_init(|| trap).clone()
    }

    /// Returns why the call ends, if it does.
    #[inline]
    pub(crate) fn stopped(&self) -> Option<&Trap> {
        self.trap.get()
    }

    /// Does something that may end the call; does nothing if the call ends already.
    #[inline]
    fn asks<T>(&mut self, f: impl FnOnce(&mut Context) -> Result<T, Trap>) -> Result<T, Trap> {
        match self.stopped() {
            None => f(self).map_err(|trap| self.stop(trap)),
            Some(trap) => Err(trap.clone()),
        }
    }

    #[inline]
    fn keep(&mut self, bytes: &[u8]) -> Result<Range<usize>, Trap> {
        if bytes.len() as u64 > PAYLOAD_MAX {
            return Err(Trap::Payload {
                bytes: bytes.len() as u64,
                most: PAYLOAD_MAX,
            });
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Ok(start..self.bytes.len())
    }

    fn effect(&mut self, effect: Effect) -> Result<(), Trap> {
        if self.effects.len() == Limits::EFFECTS {
            return Err(Trap::Effects(Limits::EFFECTS));
        }
        self.effects.push(effect);
        Ok(())
    }

    /// Returns whether a hop is left for one more message: each costs one, and what is left then is
    /// shared by all.
    fn has_hop(&self) -> bool {
        let sent = self.effects.len() - self.definitions;
        sent < self.limits.hops as usize
    }

    fn target(&self, unit: u32, entry: u32) -> Result<u8, Trap> {
        if unit >= self.units {
            return Err(Trap::NoUnit(unit));
        }
        u8::try_from(entry).map_err(|_| Trap::NoEntry(entry))
    }

    /// Goes on at another unit, at an entry of the same code, once this call has returned. The code
    /// travels with it. The reply of this call is that of the last one.
    ///
    /// # Errors
    /// [`Trap::NoUnit`], [`Trap::Payload`]; [`Trap::Forbidden`] without hops, or the second time.
    #[inline]
    pub fn forward(&mut self, unit: u32, entry: u32, payload: &[u8]) -> Result<(), Trap> {
        self.asks(|context| {
            let entry = context.target(unit, entry)?;
            if !context.has_hop() {
                return Err(Trap::Forbidden("move any further: it has no hops left"));
            }
            if context.forwards || context.reply.is_some() {
                return Err(Trap::Forbidden("end twice"));
            }
            let payload = context.keep(payload)?;
            context.forwards = true;
            context.effect(Effect::Forward {
                unit,
                entry,
                payload,
            })
        })
    }

    /// Starts a further call at a unit, whose result nobody gets.
    ///
    /// # Errors
    /// As [`Context::forward`]; [`Trap::Effects`].
    pub fn spawn(&mut self, unit: u32, entry: u32, payload: &[u8]) -> Result<(), Trap> {
        self.asks(|context| context.start(unit, entry, None, payload))
    }

    /// Starts a call of code that this call has defined.
    ///
    /// # Errors
    /// As [`Context::spawn`]; [`Trap::NoEntry`] without such a definition.
    pub fn inject(&mut self, unit: u32, code: u32, entry: u32, payload: &[u8]) -> Result<(), Trap> {
        self.asks(|context| match (code as usize) < context.definitions {
            true => context.start(unit, entry, Some(code as usize), payload),
            false => Err(Trap::NoEntry(code)),
        })
    }

    fn start(
        &mut self,
        unit: u32,
        entry: u32,
        code: Option<usize>,
        payload: &[u8],
    ) -> Result<(), Trap> {
        let entry = self.target(unit, entry)?;
        if !self.limits.may_spawn {
            return Err(Trap::Forbidden("start further calls"));
        }
        if !self.has_hop() {
            return Err(Trap::Forbidden("start more calls than it has hops left"));
        }
        let payload = self.keep(payload)?;
        self.effect(Effect::Spawn {
            unit,
            entry,
            code,
            payload,
        })
    }

    /// Makes new code from the bytes of a WebAssembly module, whose exported functions are its
    /// entries. Returns its number, for [`Context::inject`].
    ///
    /// # Errors
    /// [`Trap::Forbidden`], [`Trap::Payload`], [`Trap::Effects`].
    pub fn define(&mut self, code: &[u8]) -> Result<u32, Trap> {
        self.asks(|context| {
            if !context.limits.may_define {
                return Err(Trap::Forbidden("make new code"));
            }
            let code = context.keep(code)?;
            context.effect(Effect::Define { code })?;
            context.definitions += 1;
            Ok(context.definitions as u32 - 1)
        })
    }

    /// Replies to the origin. A call that returns without a reply, and does not go on elsewhere,
    /// replies with no bytes.
    ///
    /// # Errors
    /// [`Trap::Payload`]; [`Trap::Forbidden`] the second time.
    #[inline]
    pub fn reply(&mut self, bytes: &[u8]) -> Result<(), Trap> {
        self.asks(|context| {
            if context.forwards || context.reply.is_some() {
                return Err(Trap::Forbidden("end twice"));
            }
            context.reply = Some(context.keep(bytes)?);
            Ok(())
        })
    }

    /// Returns the length of a granted segment, in bytes.
    ///
    /// # Errors
    /// [`Trap::NotGranted`].
    #[inline]
    pub fn len(&self, grant: u32) -> Result<u64, Trap> {
        Ok(self.segment(grant, Rights::Read)?.len())
    }

    #[inline]
    fn segment(&self, grant: u32, wants: Rights) -> Result<&SharedBytes, Trap> {
        // ORDERING: Relaxed: the bits alone, as in `stop`.
        let reach = self.reach.load(Relaxed);
        let segment = self.grants.get(reach, grant, wants);
        segment.map_err(|trap| self.stop(trap))
    }

    /// Returns the address of a granted segment in this process, for code that accesses it by
    /// itself; `None` if the call does not have it.
    #[inline]
    pub(crate) fn base(&self, grant: u32) -> Option<u64> {
        let segment = (self.grants).get(self.limits.grants, grant, Rights::Read);
        Some(segment.ok()?.address())
    }

    #[inline]
    fn range(
        &self,
        grant: u32,
        offset: u64,
        len: u64,
        wants: Rights,
    ) -> Result<&SharedBytes, Trap> {
        let bytes = self.segment(grant, wants)?;
        match bytes.contains(offset, len) {
            true => Ok(bytes),
            false => Err(self.stop(Trap::Range {
                grant,
                offset,
                end: offset.saturating_add(len),
                bytes: bytes.len(),
            })),
        }
    }

    #[inline]
    fn word(&self, grant: u32, offset: u64, wants: Rights) -> Result<&AtomicU64, Trap> {
        let bytes = self.range(grant, offset, 8, wants)?;
        match (bytes.address() + offset).is_multiple_of(8) {
            true => Ok(bytes.u64(offset)),
            false => Err(self.stop(Trap::Misaligned { grant, offset })),
        }
    }

    /// Copies bytes out of a granted segment. If somebody writes them meanwhile, they are
    /// unspecified.
    ///
    /// # Errors
    /// [`Trap::NotGranted`], [`Trap::Range`].
    #[inline]
    pub fn read(&self, grant: u32, offset: u64, into: &mut [u8]) -> Result<(), Trap> {
        self.range(grant, offset, into.len() as u64, Rights::Read)?
            .read(offset, into);
        Ok(())
    }

    /// Copies bytes into a granted segment.
    ///
    /// # Errors
    /// As [`Context::read`]; [`Trap::Rights`].
    #[inline]
    pub fn write(&self, grant: u32, offset: u64, from: &[u8]) -> Result<(), Trap> {
        self.range(grant, offset, from.len() as u64, Rights::Write)?
            .write(offset, from);
        Ok(())
    }

    /// Loads an aligned word of 8 bytes.
    ///
    /// # Errors
    /// As [`Context::read`]; [`Trap::Misaligned`].
    #[inline]
    pub fn load(&self, grant: u32, offset: u64) -> Result<u64, Trap> {
        // ORDERING: Acquire pairs with a Release store of that word by `store` or a remote atomic.
        Ok(self.word(grant, offset, Rights::Read)?.load(Acquire))
    }

    /// Stores an aligned word of 8 bytes.
    ///
    /// # Errors
    /// As [`Context::load`]; [`Trap::Rights`].
    #[inline]
    pub fn store(&self, grant: u32, offset: u64, value: u64) -> Result<(), Trap> {
        // ORDERING: Release pairs with the Acquire of `load`.
        (self.word(grant, offset, Rights::Write)?).store(value, Release);
        Ok(())
    }

    /// Adds to a word and returns what it was. Atomic with all other atomics of the fabric.
    ///
    /// # Errors
    /// As [`Context::store`].
    #[inline]
    pub fn fetch_add(&self, grant: u32, offset: u64, value: u64) -> Result<u64, Trap> {
        let word = self.word(grant, offset, Rights::Write)?;
        // ORDERING: AcqRel: what a unit wrote before it changed the word is seen by those that
        // find the change.
        Ok(word.fetch_add(value, AcqRel))
    }

    /// Sets a word to `new` if it is `expected`, and returns what it was.
    ///
    /// # Errors
    /// As [`Context::store`].
    pub fn compare_exchange(
        &self,
        grant: u32,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, Trap> {
        let word = self.word(grant, offset, Rights::Write)?;
        // ORDERING: AcqRel and Acquire, as in `fetch_add`.
        let exchanged = word.compare_exchange(expected, new, AcqRel, Acquire);
        Ok(exchanged.unwrap_or_else(|found| found))
    }
}
