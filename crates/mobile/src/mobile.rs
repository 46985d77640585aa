//! The handle: registers code, grants segments, calls.

use crate::call::Call;
use crate::capsule::{Capsule, Hash};
use crate::frame::{self, Head};
use crate::input::Input;
use crate::runtime::map::ARGUMENT_MAX;
use crate::runtime::{Runtime, locked};
use crate::trust::Policy;
use crate::{Error, Failure, Result};
use samite_engines::{Code, Function, GRANTS_MAX, Grant, Kind, Limits, PAYLOAD_MAX, Rights};
use samite_fabric::rpc::Life;
use samite_fabric::{Fabric, Layer, PeerId};
use samite_mem::SharedBytes;
use std::sync::Arc;
use std::time::Duration;

/// How long the kernel of one [`Mobile::map`] may run.
const MAP_MAX: Duration = Duration::from_millis(100);

/// The most units of one tree of [`Mobile::prefetch`]: a unit gets 16 KiB with the numbers of the
/// others.
const PREFETCHED: usize = 1 << 13;

/// What a unit has done for moved code since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls that ran here.
    pub calls: u64,
    /// Calls that ended here with a trap.
    pub traps: u64,
    /// Calls that moved on from here.
    pub forwards: u64,
    /// Calls that were started by kernels here.
    pub spawns: u64,
    /// Calls that had to wait for their code.
    pub misses: u64,
    /// Codes that were compiled here.
    pub compiled: u64,
    /// Bytes of capsules that were sent to others.
    pub code_sent: u64,
    /// Bytes of capsules that were received.
    pub code_received: u64,
    /// Failures of calls for which nobody waits ([`Mobile::take_failures`]).
    pub unwaited_failures: u64,
}

/// The most failures of calls for which nobody waits that a unit keeps.
pub const FAILURES_KEPT: usize = 64;

/// Code that this unit can call and has registered.
#[derive(Clone, Debug)]
pub struct Registered {
    capsule: Capsule,
}

impl Registered {
    /// Returns its name.
    pub fn hash(&self) -> Hash {
        self.capsule.hash()
    }

    /// Returns the capsule.
    pub fn capsule(&self) -> &Capsule {
        &self.capsule
    }
}

pub(crate) struct Inner {
    pub(crate) fabric: Fabric,
    pub(crate) runtime: Arc<Runtime>,
    /// The number of this unit.
    unit: u32,
    _layer: Layer,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.fabric.set_upcall(None);
    }
}

/// Moved code, as this unit sends and runs it. Clones share it. Thread: any.
///
/// Methods other than calls to other units wait until no kernel runs here; [`Mobile::unit`] and
/// [`Mobile::units`] do not wait.
///
/// # Panics
/// In a function that a call runs on this unit: there, use the [`Context`](crate::Context).
#[derive(Clone)]
pub struct Mobile(pub(crate) Arc<Inner>);

impl std::fmt::Debug for Mobile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mobile")
            .field("me", &self.runtime().me)
            .finish_non_exhaustive()
    }
}

impl Mobile {
    /// Begins to run moved code, and waits until all units of the job have joined. Collective: no.
    /// Calls to a unit that has not begun yet wait there, up to 1 MiB of frames; further ones are
    /// dropped, and end as [`Error::Late`].
    ///
    /// # Errors
    /// [`Error::Second`]; those of [`Fabric::job_lives`].
    pub fn new(fabric: &Fabric) -> Result<Mobile> {
        let layer = fabric.layer("mobile").ok_or(Error::Second)?;
        let lives = fabric.job_lives()?;
        let me = Life {
            peer: fabric.me(),
            incarnation: fabric.incarnation(),
        };
        let life = |unit: &samite_fabric::UnitLife| Life {
            peer: unit.peer,
            incarnation: unit.incarnation,
        };
        let mut units: Vec<Life> = lives.iter().map(life).collect();
        if units.is_empty() {
            units.push(me);
        }
        let unit = units.iter().position(|unit| *unit == me).unwrap_or(0) as u32;
        let runtime = Arc::new(Runtime::new(me, unit, units));
        if cfg!(feature = "wasm") {
            runtime.warm_up();
        }
        fabric.set_upcall(Some(runtime.clone()));
        let fabric = fabric.clone();
        Ok(Mobile(Arc::new(Inner {
            fabric,
            runtime,
            unit,
            _layer: layer,
        })))
    }

    /// Returns the fabric below.
    pub fn fabric(&self) -> &Fabric {
        &self.0.fabric
    }

    fn with<R>(&self, f: impl FnOnce(&mut crate::runtime::Work) -> R) -> R {
        self.runtime().with(&self.0.fabric, f)
    }

    /// Sets which code this unit runs: by default WebAssembly of its own job. For
    /// [`Everything`](crate::Trust::Everything) there is a warning, on standard error if the
    /// program has no subscriber of `tracing`. Local.
    pub fn set_policy(&self, policy: Policy) {
        if policy.trust == crate::Trust::Everything {
            warn("this unit runs native code of every unit of its job, without a sandbox");
        }
        let allows_native = policy.allows_native();
        let dropped = self.with(|work| {
            let before = std::mem::replace(&mut work.policy, policy);
            (before, work.reconsider(self.runtime(), self.fabric()))
        });
        drop(dropped); // Without the lock, as in `define`.
        if allows_native {
            self.runtime().warm_up_native();
        }
    }

    /// Lets kernels use a segment of this unit under a number below [`GRANTS_MAX`], until it is
    /// revoked or granted anew. A segment of whole pages is mapped into the memory of kernels, and
    /// has an address there: allocate a multiple of 2 MiB. Others are reached by functions. Local.
    ///
    /// # Panics
    /// If the number is too large.
    pub fn grant(&self, number: usize, bytes: &SharedBytes, rights: Rights) {
        assert!(
            number < GRANTS_MAX,
            "grants have numbers below {GRANTS_MAX}"
        );
        let bytes = bytes.clone();
        let grant = Some(Grant { bytes, rights });
        self.with(|work| {
            work.grants = work.grants.with(number, grant);
            work.forget_grants();
        });
    }

    /// Revokes a grant, when no kernel runs any more. Local.
    pub fn revoke(&self, number: usize) {
        if number < GRANTS_MAX {
            self.with(|work| {
                work.grants = work.grants.with(number, None);
                work.forget_grants();
            });
        }
    }

    /// As [`Mobile::revoke`], if the number still means these bytes.
    pub fn revoke_segment(&self, number: usize, bytes: &SharedBytes) {
        let is_it = |grant: &Grant| {
            (grant.bytes.address(), grant.bytes.len()) == (bytes.address(), bytes.len())
        };
        self.with(|work| {
            let mut grants = work.grants.iter();
            let is_granted = grants.any(|(at, grant)| at == number && is_it(grant));
            drop(grants);
            if is_granted {
                work.grants = work.grants.with(number, None);
                work.forget_grants();
            }
        });
    }

    /// Makes functions of this program known under a name, for capsules that name it. Any unit of
    /// the job may call them, whatever is trusted here, and no limit of time holds for them. A
    /// function must not use the `Mobile` of its unit. Functions that had this name before are
    /// dropped when no kernel runs. Local.
    pub fn define(&self, name: &str, functions: Function) {
        let dropped = self.with(|work| {
            let before = work.functions.insert(name.to_owned(), functions);
            (before, work.reconsider(self.runtime(), self.fabric()))
        });
        // Without the lock: what closures own may use this `Mobile` when it is dropped.
        drop(dropped);
    }

    /// Registers code, so that this unit can call it, and give it to those that it calls. Nothing
    /// is sent. It is kept until [`Mobile::evict`]. Local.
    ///
    /// # Errors
    /// [`Error::BadCapsule`] if other code has the same id.
    pub fn register(&self, capsule: Capsule) -> Result<Registered> {
        let fabric = &self.0.fabric;
        let runtime = self.runtime();
        let kept = self.with(|work| work.register(runtime, fabric, capsule.clone(), true));
        match kept {
            true => Ok(Registered { capsule }),
            false => Err(Error::BadCapsule(
                "another capsule has the same first 8 bytes of its hash".into(),
            )),
        }
    }

    /// Drops code from this unit: the next call here asks for it again. Returns whether it was
    /// there and no call waited for it. Local.
    pub fn evict(&self, code: Hash) -> bool {
        self.with(|work| work.codes.forget(code.id()))
    }

    /// Returns in which of its forms this unit runs code; `None` if the code is not ready here.
    /// Local.
    pub fn runs_as(&self, code: Hash) -> Option<Kind> {
        self.with(|work| work.codes.runs_as(code.id()))
    }

    /// Returns code that is compiled here.
    pub(crate) fn compiled(&self, code: Hash) -> Option<Arc<dyn Code>> {
        self.with(|work| work.codes.compiled(code.id()))
    }

    /// Returns what this unit has done for moved code.
    pub fn counters(&self) -> Counters {
        self.with(|work| work.counters)
    }

    /// Returns the number of this unit.
    pub fn unit(&self) -> u32 {
        self.0.unit
    }

    /// Returns the number of units of the job.
    pub fn units(&self) -> u32 {
        locked(&self.runtime().lives).len() as u32
    }

    /// Returns the peer that a unit is now.
    #[cfg(feature = "wasm")]
    pub(crate) fn peer_of(&self, unit: u32) -> Result<PeerId> {
        Ok(self.life(unit, &[])?.peer)
    }

    /// Returns the most bytes of a payload to a unit, and of its reply.
    #[cfg(feature = "wasm")]
    pub(crate) fn payload_max(&self, unit: u32) -> Result<u64> {
        let to = self.life(unit, &[])?;
        match to == self.runtime().me {
            true => Ok(PAYLOAD_MAX),
            false => Ok(PAYLOAD_MAX.min(self.0.fabric.upcall_max(to.peer))),
        }
    }

    /// Calls code at a unit of this job. The code travels there if it is not there yet. The result
    /// is the reply of the last kernel of the call, wherever it ran. The payload has at most
    /// [`PAYLOAD_MAX`] bytes, and so has the reply; the limits are [`Limits::default`]: a kernel may
    /// run 10 ms on each unit. Completion: by the handle.
    ///
    /// # Errors
    /// [`Error::NoUnit`], [`Error::NoEntry`], [`Error::TooLong`], [`Error::TooMany`]; those of the
    /// fabric.
    pub fn call(&self, unit: u32, code: &Registered, entry: &str, payload: &[u8]) -> Result<Call> {
        self.call_within(unit, code, entry, payload, Limits::default())
    }

    /// As [`Mobile::call`], with limits of its own.
    ///
    /// # Errors
    /// As [`Mobile::call`].
    pub fn call_within(
        &self,
        unit: u32,
        code: &Registered,
        entry: &str,
        payload: &[u8],
        limits: Limits,
    ) -> Result<Call> {
        let number = code.capsule.entry(entry)?;
        self.start(unit, code, (entry, number), payload, limits, false)
    }

    /// Applies code to bytes of a segment, at a unit that maps them: one on the node of the
    /// segment. The entry is called for each piece of at most [`CHUNK`] bytes, in order. Its
    /// payload is
    ///
    /// ```text
    ///   8 bytes   how many bytes of the input precede this piece
    ///   4 bytes   length of the argument
    ///   4 bytes   zero
    ///             the argument, padded with zeros to a multiple of 16 bytes
    ///             the piece
    /// ```
    ///
    /// The reply of the call consists of the replies of the kernel, one after another, at most
    /// [`PAYLOAD_MAX`] bytes. The kernel can do nothing else: it cannot move on, nor start calls.
    /// All pieces together may take 0.1 s. The argument has at most [`ARGUMENT_MAX`] bytes.
    /// Completion: by the handle.
    ///
    /// [`CHUNK`]: crate::CHUNK
    /// [`ARGUMENT_MAX`]: crate::ARGUMENT_MAX
    ///
    /// # Errors
    /// As [`Mobile::call`]. The call fails with [`Cause::Input`](crate::Cause::Input) if the unit
    /// does not map the segment, or the input is outside of it or longer than
    /// [`INPUT_MAX`](crate::INPUT_MAX); and with [`Cause::Forbidden`](crate::Cause::Forbidden) if
    /// the replies together are too long.
    pub fn map(
        &self,
        unit: u32,
        code: &Registered,
        entry: &str,
        argument: &[u8],
        input: &Input,
    ) -> Result<Call> {
        if argument.len() > ARGUMENT_MAX {
            return Err(Error::TooLong {
                bytes: argument.len() as u64,
                most: ARGUMENT_MAX as u64,
            });
        }
        let number = code.capsule.entry(entry)?;
        let limits = Limits {
            hops: 0,
            run: MAP_MAX,
            ..Limits::default()
        };
        let payload = [&input.encode(), argument].concat();
        self.start(unit, code, (entry, number), &payload, limits, true)
    }

    /// As [`Mobile::call_within`], with the number of the entry ([`Capsule::entry`]).
    ///
    /// # Errors
    /// As [`Mobile::call`].
    #[inline]
    pub fn call_entry(
        &self,
        unit: u32,
        code: &Registered,
        entry: u8,
        payload: &[u8],
        limits: Limits,
    ) -> Result<Call> {
        self.start(unit, code, ("", entry), payload, limits, false)
    }

    fn start(
        &self,
        unit: u32,
        code: &Registered,
        (name, entry): (&str, u8),
        payload: &[u8],
        limits: Limits,
        has_input: bool,
    ) -> Result<Call> {
        let to = self.life(unit, payload)?;
        let moves_for = match limits.hops {
            0 => Duration::ZERO,
            _ => limits.time.min(frame::TIME_MAX),
        };
        let runtime = self.runtime();
        let slot = locked(&runtime.calls).add(to, moves_for);
        let slot = slot.ok_or(Error::TooMany(crate::calls::CALLS_MAX))?;
        let call = Call::new(self.clone(), slot, to, name);
        let head = Head {
            entry,
            limits,
            slot,
            origin: runtime.me,
            one_way: false,
            has_input,
        };
        match self.post(to, code, &head.encode(frame::CALL), payload) {
            Ok(()) => Ok(call),
            Err(error) => {
                call.cancel();
                Err(error)
            }
        }
    }

    /// As [`Mobile::call`], without a result; [`Mobile::take_failures`] tells how such calls
    /// failed. Completion: local.
    ///
    /// # Errors
    /// As [`Mobile::call`].
    pub fn send(&self, unit: u32, code: &Registered, entry: &str, payload: &[u8]) -> Result<()> {
        let head = Head {
            entry: code.capsule.entry(entry)?,
            limits: Limits::default(),
            slot: 0,
            origin: self.runtime().me,
            one_way: true,
            has_input: false,
        };
        let to = self.life(unit, payload)?;
        self.post(to, code, &head.encode(frame::CALL), payload)
    }

    /// Returns how calls failed for which nobody waits, and that were not returned before: those
    /// that this unit has [sent](Mobile::send), and those that kernels have started in the course
    /// of its calls. At most [`FAILURES_KEPT`] of them are kept, the newest ones;
    /// [`Counters::unwaited_failures`] counts all. A unit that is lost, or is sent too much,
    /// reports nothing.
    pub fn take_failures(&self) -> Vec<Failure> {
        self.with(|work| std::mem::take(&mut work.unwaited).into())
    }

    /// Has units fetch and compile code, so that the first call is as fast as later ones. Each unit
    /// gets it from the one before it in a tree. Completion: by the handle, when all have it.
    ///
    /// # Errors
    /// [`Error::NoUnit`], [`Error::TooMany`].
    pub fn prefetch(&self, code: &Registered, units: &[u32]) -> Result<Call> {
        let lives = units.iter().map(|unit| self.life(*unit, &[]));
        let lives = lives.collect::<Result<Vec<_>>>()?;
        let runtime = self.runtime();
        let me = runtime.me;
        let slot = locked(&runtime.calls).add_several(me, frame::TIME_MAX, &lives);
        let slot = slot.ok_or(Error::TooMany(crate::calls::CALLS_MAX))?;
        let call = Call::new(self.clone(), slot, me, "prefetch");
        if units.is_empty() {
            locked(&runtime.calls).answer(slot, me, Ok(Vec::new()));
        }
        let head = Head {
            entry: 0,
            limits: Limits::default(),
            slot,
            origin: me,
            one_way: false,
            has_input: false,
        };
        let id = code.hash().id();
        for units in units.chunks(PREFETCHED) {
            let bytes: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
            self.with(|work| work.pass_on(runtime, &self.0.fabric, &head, id, &bytes));
        }
        Ok(call)
    }

    /// Makes progress, and so runs what others call, until `done` returns a value. Any other wait
    /// of the fabric does so, too.
    ///
    /// # Errors
    /// [`samite_fabric::Error::Timeout`].
    pub fn serve<T>(&self, deadline: Duration, done: impl FnMut() -> Option<T>) -> Result<T> {
        let what = "the end of serving moved code";
        Ok((self.0.fabric).wait_stepping_within(deadline, what, &[], done, || false)?)
    }

    #[inline]
    fn life(&self, unit: u32, payload: &[u8]) -> Result<Life> {
        if payload.len() as u64 > PAYLOAD_MAX {
            return Err(Error::TooLong {
                bytes: payload.len() as u64,
                most: PAYLOAD_MAX,
            });
        }
        let units = locked(&self.runtime().lives);
        let life = units.get(unit as usize).copied();
        life.ok_or_else(|| Error::NoUnit {
            unit,
            units: units.len() as u32,
        })
    }

    /// Sends a call, and waits for room if there is none.
    #[inline]
    fn post(&self, to: Life, code: &Registered, head: &[u8], payload: &[u8]) -> Result<()> {
        let (fabric, id) = (&self.0.fabric, code.capsule.hash().id());
        if to == self.runtime().me {
            let runtime = self.runtime();
            if let Some(error) = fabric.lost_life(to.peer, to.incarnation) {
                return Err(error.into()); // A fork.
            }
            self.with(|work| work.post_here(runtime, fabric, id, head, payload));
            return Ok(());
        }
        if fabric.post_upcall(to, id, head, payload)? {
            return Ok(());
        }
        let what = "room for a call";
        let again = || match fabric.post_upcall(to, id, head, payload) {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        };
        Ok(fabric.wait_stepping(what, &[to.peer], again, || false)??)
    }
}

/// Warns the user, also of a program that shows no events of libraries.
fn warn(what: &str) {
    tracing::warn!("{what}");
    if !tracing::dispatcher::has_been_set() {
        use std::io::Write;
        // Nobody may read it.
        let _ = writeln!(std::io::stderr(), "samite: {what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::{Config, Identity};

    /// A function can ask for its unit, as this does not wait for kernels; it cannot call.
    #[test]
    fn the_number_of_a_unit_is_known_while_a_kernel_runs() {
        let fabric = Fabric::alone(Identity::by_hand("number"), Config::default()).unwrap();
        let mobile = Mobile::new(&fabric).unwrap();
        let asks = mobile.clone();
        let asks = Function::new(move |context, _| {
            context.reply(&[asks.unit() as u8, asks.units() as u8])
        });
        mobile.define("asks", asks);
        let code = Capsule::of_function("asks", ["unit"]).unwrap();
        let code = mobile.register(code).unwrap();
        assert_eq!(
            mobile.call(0, &code, "unit", &[]).unwrap().wait(),
            Ok(vec![0, 1])
        );
        // The function has a clone of the `Mobile` that has it.
        mobile.define("asks", Function::default());
    }
}
