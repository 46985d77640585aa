//! How a process becomes a unit: by the environment that the launcher sets, or by hand.

use crate::config::{Config as Settings, HugePages, Layers, PtracerName};
use samite_fabric::{Config, Error, Fabric, Identity, Ptracer, Result};
use std::env::{self, VarError};

/// The environment variables by which a launcher identifies a process.
///
/// A person who starts the processes of one program by hand sets [`DOMAIN`](variable::DOMAIN),
/// [`JOB`](variable::JOB) (any name, the same for all), [`RANK`](variable::RANK) and
/// [`SIZE`](variable::SIZE). If the job has several programs, each process also needs
/// [`UNIT`](variable::UNIT) and [`UNITS`](variable::UNITS).
pub mod variable {
    /// The name of the domain to join.
    pub const DOMAIN: &str = "SAMITE_DOMAIN";
    /// The name of the job.
    pub const JOB: &str = "SAMITE_JOB";
    /// The name of the program within the workflow.
    pub const PROGRAM: &str = "SAMITE_PROGRAM";
    /// The index among the units of the program.
    pub const RANK: &str = "SAMITE_RANK";
    /// The number of units of the program.
    pub const SIZE: &str = "SAMITE_SIZE";
    /// The index among the units of the job.
    pub const UNIT: &str = "SAMITE_UNIT";
    /// The number of units of the job.
    pub const UNITS: &str = "SAMITE_UNITS";
    /// The process id of the launcher.
    pub const LAUNCHER: &str = "SAMITE_LAUNCHER";
    /// The resolved configuration, as TOML.
    pub const CONFIG: &str = "SAMITE_CONFIG";
}

fn number(name: &str, default: u32) -> Result<u32> {
    match env::var(name) {
        Err(env::VarError::NotPresent) => Ok(default),
        Err(error) => Err(wrong(format!("{name}: {error}"))),
        Ok(text) => text.parse().map_err(|_| {
            wrong(format!(
                "{name} is \"{text}\", which is not a number; correct it"
            ))
        }),
    }
}

/// Returns the text of a variable, or the default if it is not set.
fn text(name: &str, default: String) -> Result<String> {
    match env::var(name) {
        Err(VarError::NotPresent) => Ok(default),
        given => given.map_err(|error| wrong(format!("{name}: {error}"))),
    }
}

/// Returns the error of an identity that the environment describes wrongly.
fn wrong(what: String) -> Error {
    Error::Join {
        domain: env::var(variable::DOMAIN).unwrap_or_default(),
        why: format!("{what}, or start units with `samite run`"),
    }
}

/// Returns the identity that the launcher has set; without one, a job of its own. `joins`: a domain
/// where other units of the job may be.
fn identity(joins: bool) -> Result<Identity> {
    let program = env::current_exe().ok();
    let program = program
        .as_ref()
        .and_then(|path| path.file_name())
        .map(|name| name.to_string_lossy());
    let by_hand = Identity::by_hand(&program.unwrap_or("program".into()));
    let (rank, size) = (number(variable::RANK, 0)?, number(variable::SIZE, 1)?);
    if rank >= size {
        let (rank_is, size_is) = (variable::RANK, variable::SIZE);
        return Err(wrong(format!(
            "{rank_is} is {rank}, but {size_is} is {size}, and the first rank is 0; correct them"
        )));
    }
    // Ranks count within a job, so several processes are told which one they belong to.
    if size > 1 {
        let missing = match (joins, env::var(variable::JOB)) {
            (false, _) => Some((variable::DOMAIN, "the domain of a running `samite agent`")),
            (true, Err(VarError::NotPresent)) => {
                Some((variable::JOB, "any name, the same for all of them"))
            }
            (true, _) => None,
        };
        if let Some((name, what)) = missing {
            let size_is = variable::SIZE;
            return Err(wrong(format!(
                "{size_is} is {size}, but {name} is not set; set it ({what})"
            )));
        }
    }
    // Whoever starts a job of one program by hand need not say the same numbers twice.
    let is_of_job = joins && env::var_os(variable::JOB).is_some();
    let (unit, units) = if is_of_job { (rank, size) } else { (0, 1) };
    Ok(Identity {
        job: text(variable::JOB, by_hand.job)?,
        program: text(variable::PROGRAM, by_hand.program)?,
        rank,
        size,
        unit: number(variable::UNIT, unit)?,
        units: number(variable::UNITS, units)?,
    })
}

/// Converts the resolved configuration and the calibration of this host to settings of the fabric.
pub fn fabric_config(config: &Settings) -> Config {
    let fabric = &config.fabric;
    Config {
        deadline: fabric.deadline.get(),
        spin: fabric.spin.set().map(|spin| spin.get()),
        eager_max: fabric.eager_max.set().map(|bytes| bytes.get()),
        mask: fabric.masked(),
        link: fabric.link.link(),
        ptracer: ptracer(fabric.ptracer),
        huge_pages: fabric.huge_pages == HugePages::Auto,
        budget: config.memory.budget.set().map(|bytes| bytes.get()),
        background: false,
        check: fabric.check,
        costs: crate::calibration::load().unwrap_or_default(),
    }
}

/// Returns which processes may copy from this process, according to its settings. A process that
/// was started by hand has no launcher.
fn ptracer(name: PtracerName) -> Ptracer {
    let launcher = || env::var(variable::LAUNCHER).ok()?.parse().ok();
    match name {
        PtracerName::Launcher => launcher().map_or(Ptracer::Unchanged, Ptracer::Process),
        PtracerName::Any => Ptracer::Any,
        PtracerName::Unchanged => Ptracer::Unchanged,
    }
}

/// Returns the settings that the launcher resolved; without a launcher, those of the user's file
/// and the environment. Makes them the default for streams and for the event logs of chunks.
fn of_environment() -> Result<Config> {
    let settings = settings()?;
    settings.streams().make_default();
    settings.dsm.log_settings().make_default();
    let topology = settings.dsm.topology();
    let topology = topology.map_err(|error| wrong(format!("dsm.topology: {error}")))?;
    if let Some(topology) = topology {
        topology.make_default();
    }
    Ok(fabric_config(&settings))
}

fn settings() -> Result<Settings> {
    let settings = match env::var_os(variable::CONFIG) {
        // If it is not UTF-8, parsing rejects its text.
        Some(text) => Settings::from_toml(&text.to_string_lossy()),
        None => Layers::default()
            .user_file()
            .and_then(Layers::own_environment)
            .and_then(|layers| layers.resolve())
            .map(|resolved| resolved.config),
    };
    settings.map_err(|error| Error::Join {
        domain: env::var(variable::DOMAIN).unwrap_or_else(|_| "of one".to_owned()),
        why: error.to_string(),
    })
}

/// Joins the domain that the launcher names. Without one, or without a launcher, the process is a
/// domain of one. A process calls it once: other parts of a program take clones of the [`Fabric`].
///
/// ```
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let fabric = samite::init()?;
///     println!("unit {} of {}", fabric.identity().unit, fabric.identity().units);
///     Ok(())
/// }
/// ```
pub fn init() -> Result<Fabric> {
    init_with(of_environment()?)
}

/// Joins like [`init`], with the program's own settings.
///
/// ```
/// use samite::FabricConfig;
/// use std::time::Duration;
///
/// let config = FabricConfig { deadline: Duration::from_secs(5), ..FabricConfig::default() };
/// let fabric = samite::init_with(config)?;
/// assert_eq!(fabric.deadline(), Duration::from_secs(5));
/// # Ok::<(), samite::Error>(())
/// ```
pub fn init_with(config: Config) -> Result<Fabric> {
    match env::var(variable::DOMAIN) {
        Ok(domain) => Fabric::join(&domain, identity(true)?, config),
        Err(VarError::NotPresent) => Fabric::alone(identity(false)?, config),
        Err(error) => Err(wrong(format!("{}: {error}", variable::DOMAIN))),
    }
}

/// Joins a running domain by name, from a program started by hand.
///
/// ```no_run
/// let fabric = samite::join("lab")?; // beside `samite agent --domain lab`
/// for peer in fabric.peers() {
///     println!("{peer:?}");
/// }
/// # Ok::<(), samite::Error>(())
/// ```
pub fn join(domain: &str) -> Result<Fabric> {
    Fabric::join(domain, identity(true)?, of_environment()?)
}
