//! The `tcpSocket` probe: the port accepts a connection.

use usher_core::plan::{Host, Port};

use super::connect::{self, Network};
use super::error::ProbeError;
use super::{Target, port_number};

/// Opens a connection and closes it. The shim does this itself, without a prober, because it reads
/// no data from the server.
///
/// # Errors
///
/// If there is no connection.
pub(super) async fn attempt(
    host: Option<Host>,
    port: &Port,
    target: &Target,
) -> Result<(), ProbeError> {
    let port = port_number(port, target)?;
    let _connection = connect::open(host, port, Network::Of(target)).await?;
    Ok(())
}
