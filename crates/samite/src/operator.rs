//! Moved code as the operator of a reduction.

use samite_mobile::{Capsule, Local, Mobile};
use samite_pgas::{Elem, Operator, Team};
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What can go wrong with an operator that travels.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// It could not be given to the members of the team.
    #[error(transparent)]
    Pgas(#[from] samite_pgas::Error),
    /// It is not accepted here, or has failed here.
    #[error(transparent)]
    Mobile(#[from] samite_mobile::Error),
    /// It is not accepted at another member, or has failed there.
    #[error(
        "the operator is not accepted at rank {rank}, or has failed there: the error there says why"
    )]
    Elsewhere {
        /// The lowest rank at which it has.
        rank: u32,
    },
    /// The root has no capsule.
    #[error("rank {root} has given no capsule for the operator")]
    NoCapsule {
        /// The root.
        root: u32,
    },
}

samite_mem::error_codes!(OperatorError, "operator", {
    Elsewhere = 650, NoCapsule = 651,
}, inner: Pgas, Mobile);

/// An operator that came as a capsule.
///
/// Its entry gets up to 8 KiB of elements of the members with lower ranks, followed by as many of
/// the others, and replies with the results. So it runs once for many elements. It has to be
/// associative; it need not commute.
///
/// ```
/// use samite::mobile::{Capsule, Mobile};
/// use samite::{MovedOperator, pgas::Pgas};
/// # let fabric = samite::init()?;
/// let pgas = Pgas::new(&fabric)?;
/// let (world, mobile) = (pgas.world(), Mobile::new(&fabric)?);
/// // The greater one of two numbers of 64 bits, at rank 0 only: the others need not know it.
/// let code = match world.rank() {
///     0 => Some(Capsule::from_wat(r#"(module
///         (import "samite" "memory" (memory 1))
///         (import "samite" "reply" (func $reply (param i32 i32)))
///         (func (export "greater") (param $at i32) (param $len i32) (result i32)
///             (local $half i32) (local $left i32)
///             (local.set $half (i32.shr_u (local.get $len) (i32.const 1)))
///             (local.set $left (local.get $at))
///             (loop $next
///                 (i64.store (local.get $left) (select
///                     (i64.load (local.get $left))
///                     (i64.load (i32.add (local.get $left) (local.get $half)))
///                     (i64.gt_u (i64.load (local.get $left))
///                         (i64.load (i32.add (local.get $left) (local.get $half))))))
///                 (local.set $left (i32.add (local.get $left) (i32.const 8)))
///                 (br_if $next (i32.lt_u (local.get $left)
///                     (i32.add (local.get $at) (local.get $half)))))
///             (call $reply (local.get $at) (local.get $half))
///             (i32.const 0)))"#)?),
///     _ => None,
/// };
/// let greater = MovedOperator::<u64>::new(&mobile, world, 0, code.as_ref(), "greater")?;
/// let mut most = [0];
/// greater.all_reduce(&[u64::from(world.rank())], &mut most)?;
/// assert_eq!(most, [u64::from(world.size()) - 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MovedOperator<T> {
    team: Team,
    /// The code, and why it has failed first.
    local: Mutex<(Local, Option<samite_mobile::Error>)>,
    entry: u8,
    elements: PhantomData<fn() -> T>,
}

impl<T> std::fmt::Debug for MovedOperator<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MovedOperator")
            .field("entry", &self.entry)
            .finish_non_exhaustive()
    }
}

impl<T: Elem> MovedOperator<T> {
    /// Brings the capsule of `root` to all members of a team, and compiles it there. The others
    /// give none. Collective over the team.
    ///
    /// # Errors
    /// [`OperatorError::NoCapsule`]; [`OperatorError::Mobile`] and [`OperatorError::Elsewhere`] if
    /// a member does not accept it ([`samite_mobile::Policy`]), at all members; those of
    /// collectives.
    pub fn new(
        mobile: &Mobile,
        team: &Team,
        root: u32,
        capsule: Option<&Capsule>,
        entry: &str,
    ) -> Result<MovedOperator<T>, OperatorError> {
        let mut len = [capsule.map_or(0, |capsule| capsule.bytes().len() as u64)];
        team.broadcast(root, &mut len)?;
        if len == [0] {
            return Err(OperatorError::NoCapsule { root });
        }
        let mut bytes = match capsule {
            Some(capsule) if team.rank() == root => capsule.bytes().to_vec(),
            _ => vec![0; len[0].min(samite_mobile::CAPSULE_MAX) as usize],
        };
        team.broadcast(root, &mut bytes[..])?;
        let prepared = Capsule::decode(&bytes).and_then(|capsule| {
            let number = capsule.entry(entry)?;
            let code = mobile.register(capsule)?;
            Ok((mobile.local(&code)?, number))
        });
        agree(team, prepared.as_ref().err().cloned())?;
        let (local, entry) = prepared?;
        Ok(MovedOperator {
            team: team.clone(),
            local: Mutex::new((local, None)),
            entry,
            elements: PhantomData,
        })
    }

    /// Combines the elements of all members, index by index, and gives the result to all members
    /// ([`Team::all_reduce`]). Collective over the team.
    ///
    /// # Errors
    /// [`OperatorError::Mobile`] and [`OperatorError::Elsewhere`] if the operator fails at a
    /// member, at all members: then what is in `into` means nothing. Those of collectives.
    pub fn all_reduce(&self, from: &[T], into: &mut [T]) -> Result<(), OperatorError> {
        self.locked().1 = None; // That of a collective which has failed, too.
        self.team.all_reduce(from, into, Applied(self))?;
        let failed = self.locked().1.take();
        agree(&self.team, failed)
    }

    fn locked(&self) -> MutexGuard<'_, (Local, Option<samite_mobile::Error>)> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the same outcome at all members: the error of this one, or that another one has one.
fn agree(team: &Team, failed: Option<samite_mobile::Error>) -> Result<(), OperatorError> {
    let own = match failed {
        Some(_) => team.rank(),
        None => u32::MAX,
    };
    let mut first = [u32::MAX];
    team.all_reduce(&[own], &mut first, samite_pgas::Min)?;
    match (failed, first) {
        (Some(error), _) => Err(error.into()),
        (None, [u32::MAX]) => Ok(()),
        (None, [rank]) => Err(OperatorError::Elsewhere { rank }),
    }
}

/// The operator during a collective.
struct Applied<'o, T>(&'o MovedOperator<T>);

impl<T: Elem> Applied<'_, T> {
    /// Runs the operator; after a failure, elements stay as they are.
    fn run(&self, left: &mut [u8], right: &[u8]) {
        let (local, failed) = &mut *self.0.locked();
        if failed.is_some() {
            return;
        }
        let payload = [&*left, right].concat();
        match local.call(self.0.entry, &payload) {
            Ok(reply) if reply.len() == left.len() => left.copy_from_slice(reply),
            Ok(reply) => {
                let (is, should) = (reply.len() as u64, left.len() as u64);
                *failed = Some(samite_mobile::Error::BadReply { is, should });
            }
            Err(error) => *failed = Some(error),
        }
    }
}

impl<T: Elem> Operator<T> for Applied<'_, T> {
    fn apply(&self, left: T, right: T) -> T {
        let mut result = left;
        let bytes = bytemuck::bytes_of_mut(&mut result);
        self.run(bytes, bytemuck::bytes_of(&right));
        result
    }

    fn apply_bytes(&self, left: &mut [u8], right: &[u8]) {
        self.run(left, right);
    }

    fn commutes(&self) -> bool {
        false
    }
}
