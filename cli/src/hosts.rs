//! Jobs on several machines: the options of `samite run` that name them, and `samite host`, which
//! runs on each of them.

use crate::ends::Ends;
use crate::run::UsageError;
use anyhow::{Context, Result, ensure};
use samite::agent::{self, Secret};
use samite_launch::{Exit, Host, HostSide, Name, Node, Plan};
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::Write;
use std::net::{IpAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// What starts a command on a host.
const SSH: &str =
    "ssh -T -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3 {host}";
/// How long an agent that is ready may take to say where it listens.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);

/// Options of a job on several machines.
#[derive(clap::Args)]
#[command(next_help_heading = "Several machines")]
pub(crate) struct HostsArgs {
    /// Run the units on these machines, each of which needs samite, the program and this folder at
    /// the same paths: names, or NAME=ADDRESS where others reach a machine at another address
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    hosts: Vec<String>,
    /// What starts a command on a machine; {host} is its name. With it, the command is quoted for a
    /// shell
    #[arg(long, value_name = "COMMAND", requires = "hosts", default_value = SSH)]
    host_start: String,
    /// Transports of UCX between machines, as in UCX_TLS [default: chosen by UCX]
    #[arg(long, value_name = "LIST", requires = "hosts")]
    host_transports: Option<String>,
    /// Network devices of UCX between machines, as in UCX_NET_DEVICES [default: chosen by UCX]
    #[arg(long, value_name = "LIST", requires = "hosts")]
    host_devices: Option<String>,
}

impl HostsArgs {
    /// Returns whether the job runs on machines that are named.
    pub(crate) fn are_given(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Completes a plan that runs on these machines.
    pub(crate) fn complete(&self, plan: &mut Plan, executable: &Path) -> Result<()> {
        let mut hosts: Vec<Host> = Vec::new();
        for host in &self.hosts {
            let (name, address) = host.split_once('=').unwrap_or((host, host));
            // It becomes a word of a command.
            let is_odd = |text: &str| {
                let wrong = |letter: char| letter.is_whitespace() || letter.is_control();
                text.is_empty() || text.starts_with('-') || text.contains(wrong)
            };
            if is_odd(name) || is_odd(address) {
                return Err(UsageError(format!("--hosts: `{host}` names no machine")).into());
            }
            if hosts.iter().any(|other| other.name == name) {
                let why =
                    format!("--hosts: {name} is named twice; -n says how many units there are");
                return Err(UsageError(why).into());
            }
            let mut command: Vec<OsString> = (self.host_start.split_whitespace())
                .map(|word| word.replace("{host}", name).into())
                .collect();
            command.push(match self.host_start.contains("{host}") {
                true => for_a_shell(executable),
                false => executable.into(),
            });
            command.push("host".into());
            hosts.push(Host {
                name: name.to_owned(),
                address: address.to_owned(),
                command,
                transports: self.host_transports.clone(),
                devices: self.host_devices.clone(),
            });
        }
        plan.hosts = hosts;
        plan.secret = Secret::generate();
        plan.cwd = std::env::current_dir().context("this folder is gone")?;
        plan.agent = None;
        if let Some(path) = plan.path_that_is_no_text() {
            let why = format!(
                "--hosts: the path {} is not UTF-8 text, so other machines cannot be told of it: \
                 rename it; nothing was started",
                path.display()
            );
            return Err(UsageError(why).into());
        }
        Ok(())
    }
}

/// Quotes a path if a shell would change it: `ssh` gives the command to one.
fn for_a_shell(path: &Path) -> OsString {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+@".contains(byte);
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.iter().all(is_plain) {
        return path.into();
    }
    let text = path.to_string_lossy().replace('\'', r"'\''");
    format!("'{text}'").into()
}

/// Runs `samite host`: does what the launcher at the other end of standard input and output says.
pub(crate) fn serve() -> Result<ExitCode> {
    let executable = std::env::current_exe().context("cannot find the samite executable")?;
    let mut side = Side {
        executable,
        secret: None,
        ends: None,
    };
    samite_launch::serve(&mut side)?;
    Ok(ExitCode::SUCCESS)
}

/// This machine, as one of several.
struct Side {
    executable: PathBuf,
    /// The file with the secret, until the agent has read it. It has no name, so nothing is left of
    /// it if this process is killed.
    secret: Option<File>,
    ends: Option<Ends>,
}

impl Side {
    fn prepare(&mut self, plan: &mut Plan, node: &Node) -> Result<Vec<OsString>> {
        ensure!(
            samite::has_ucx(),
            "units of several machines need UCX: install libucx0 (1.13 or newer)"
        );
        // Several hosts of a job may be one machine.
        plan.domain = format!("{}-{}", plan.domain, node.host);
        plan.starter = Some(self.executable.clone());
        for program in &plan.programs {
            let command = &program.command;
            ensure!(
                command.is_file(),
                "{} is needed there, as here: there is no {}",
                program.name,
                command.display()
            );
        }
        let option = format!("{}=10.0.0.1", node.name);
        let listen = listening(&node.listen, &option)?;
        samite::calibration::load_or_measure(|what| tracing::info!(what));
        let (secret, name) = secret_file(&node.secret)?;
        let host = plan.hosts.get(node.host as usize);
        let of_host =
            |value: fn(&Host) -> &Option<String>| host.and_then(|host| value(host).clone());
        let options = [
            ("--domain", Some(plan.domain.clone())),
            ("--listen", Some(listen)),
            ("--node", Some(node.name.clone())),
            ("--secret", Some(name)),
            ("--join", node.join.clone()),
            ("--transports", of_host(|host| &host.transports)),
            ("--devices", of_host(|host| &host.devices)),
        ];
        let mut command: Vec<OsString> = vec![self.executable.clone().into(), "agent".into()];
        command.extend(given(options));
        self.secret = Some(secret);
        self.ends = Some(Ends::of(plan));
        Ok(command)
    }
}

/// Returns the words of those options that have a value.
pub(crate) fn given(
    options: impl IntoIterator<Item = (&'static str, Option<String>)>,
) -> impl Iterator<Item = OsString> {
    let words = |(option, value): (&'static str, Option<String>)| {
        value.map(|value| [OsString::from(option), value.into()])
    };
    options.into_iter().filter_map(words).flatten()
}

/// Puts a secret into a file without a name, of which nothing is left when this process ends.
/// Returns the path by which a child opens it meanwhile.
pub(crate) fn secret_file(secret: &str) -> Result<(File, String)> {
    let mut file = tempfile::tempfile().context("no file for the secret")?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    writeln!(file, "{secret}")?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    Ok((file, path))
}

/// Returns where the agent of a machine listens, which is given by its name or address. Refuses a
/// name that only this machine can reach: `option` says how to give an address.
pub(crate) fn listening(machine: &str, option: &str) -> Result<String> {
    let is_given = machine == "localhost" || machine.parse::<IpAddr>().is_ok();
    if !is_given {
        let found = (machine, 0).to_socket_addrs();
        for address in found.with_context(|| format!("{machine} is not known there"))? {
            ensure!(
                !address.ip().to_canonical().is_loopback(),
                "{machine} is {} there, which no other machine reaches: name its address, as \
                 {option}",
                address.ip(),
            );
        }
    }
    Ok(match machine.contains(':') {
        true => format!("[{machine}]:0"),
        false => format!("{machine}:0"),
    })
}

impl HostSide for Side {
    fn agent(&mut self, plan: &mut Plan, node: &Node) -> Result<Vec<OsString>, String> {
        self.prepare(plan, node)
            .map_err(|error| format!("{error:#}"))
    }

    fn address(&mut self, plan: &Plan) -> Result<String, String> {
        self.secret = None;
        let facts = agent::facts(&plan.domain, ANSWER).map_err(|error| error.to_string())?;
        let own = facts.nodes.into_iter().next();
        own.map(|own| own.address)
            .ok_or_else(|| "its agent is not one of several".to_owned())
    }

    fn ended(&mut self, name: &Name, exit: Exit) {
        if let Some(ends) = &mut self.ends {
            ends.tell(name, exit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_a_shell_if_they_must_be() {
        for (path, quoted) in [
            ("/usr/bin/samite", "/usr/bin/samite"),
            ("/home/a b/samite", "'/home/a b/samite'"),
            ("/it's", r"'/it'\''s'"),
        ] {
            assert_eq!(for_a_shell(Path::new(path)), quoted);
        }
    }
}
