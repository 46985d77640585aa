//! How a node is one of several: the options of `samite agent` that concern other nodes.

use anyhow::{Context, Result, bail, ensure};
use samite::agent::{FarTransport, Network, Secret};
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Options of a node that is one of several.
#[derive(clap::Args)]
#[command(next_help_heading = "Several nodes")]
pub(crate) struct NetworkArgs {
    /// Be one of several nodes: the address of this node at which other agents reach this one, as
    /// 10.0.0.7:7000. Port 0: any that is free
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Join the domain whose first agent has this address [default: be the first one]
    #[arg(long, value_name = "ADDRESS", requires = "listen")]
    join: Option<String>,
    /// The file with the secret of the domain, which only its user may read. The first agent makes
    /// it if it does not exist; the others need a copy
    #[arg(long, value_name = "FILE", requires = "listen")]
    secret: Option<PathBuf>,
    /// The name of this node [default: that of the machine]
    #[arg(long, value_name = "NAME", requires = "listen")]
    node: Option<String>,
    /// Transports of UCX between nodes, as in UCX_TLS [default: chosen by UCX]
    #[arg(long, value_name = "LIST", requires = "listen")]
    transports: Option<String>,
    /// Network devices of UCX between nodes, as in UCX_NET_DEVICES [default: chosen by UCX]
    #[arg(long, value_name = "LIST", requires = "listen")]
    devices: Option<String>,
}

impl NetworkArgs {
    /// Returns how this node is one of several; `None` if it is the only one.
    pub(crate) fn network(&self) -> Result<Option<Network>> {
        let Some(listen) = &self.listen else {
            return Ok(None);
        };
        let Some(file) = &self.secret else {
            bail!(
                "agents of several nodes need a secret: name its file (--secret FILE), which the first agent makes"
            );
        };
        ensure!(
            samite::has_ucx(),
            "units of several nodes need UCX: install libucx0 (1.13 or newer) on each of them"
        );
        let secret = secret(file, self.join.is_none())?;
        let name = match &self.node {
            Some(name) => name.clone(),
            None => rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
        };
        Ok(Some(Network {
            name,
            listen: resolve(listen)?,
            join: self.join.clone(),
            secret,
            transport: FarTransport {
                transports: self.transports.clone(),
                devices: self.devices.clone(),
            },
        }))
    }
}

fn resolve(address: &str) -> Result<SocketAddr> {
    let found = address.to_socket_addrs();
    let found = found.with_context(|| {
        format!("{address} is no address of this node, as 10.0.0.7:7000 or node7:7000")
    })?;
    found
        .into_iter()
        .next()
        .with_context(|| format!("{address} names no machine"))
}

/// Reads the secret of a domain; makes it if `may_make`.
fn secret(file: &Path, may_make: bool) -> Result<Secret> {
    let name = file.display();
    match fs::metadata(file) {
        Ok(found) => ensure!(
            found.mode() & 0o077 == 0,
            "{name} can be read by other users: chmod 600 {name}"
        ),
        Err(error) if error.kind() == ErrorKind::NotFound && may_make => {
            let mut made = fs::OpenOptions::new();
            let made = made.write(true).create_new(true).mode(0o600).open(file);
            let mut made = made.with_context(|| format!("{name} cannot be made"))?;
            writeln!(made, "{}", Secret::generate())?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{name} does not exist: copy it from the node of the first agent, which made it")
        }
        Err(error) => return Err(error).with_context(|| format!("{name} cannot be read")),
    }
    let text = fs::read_to_string(file).with_context(|| format!("{name} cannot be read"))?;
    Secret::of(&text).map_err(|why| anyhow::anyhow!("{name}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_made_once_and_kept_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let missing = secret(&file, false).unwrap_err().to_string();
        assert!(missing.contains("copy it"), "{missing}");
        let made = secret(&file, true).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(secret(&file, true).unwrap(), made);
        assert_eq!(secret(&file, false).unwrap(), made);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let open = secret(&file, false).unwrap_err().to_string();
        assert!(open.contains("chmod 600"), "{open}");
        fs::write(folder.path().join("short"), "abc").unwrap();
        fs::set_permissions(
            folder.path().join("short"),
            fs::Permissions::from_mode(0o600),
        )
        .unwrap();
        let short = secret(&folder.path().join("short"), true)
            .unwrap_err()
            .to_string();
        assert!(short.contains("fewer than 16"), "{short}");
    }
}
