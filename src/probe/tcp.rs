//! The `tcpSocket` probe: the port accepts a connection.

use crate::plan::{Host, Port};

use super::Target;
use super::connect::{self, port_number};

/// Opens a connection and closes it.
///
/// # Errors
///
/// Why no connection came about, in one sentence.
pub(super) async fn attempt(
    host: Option<Host>,
    port: &Port,
    target: &Target,
) -> Result<(), String> {
    let _connection = connect::open(host, port_number(port, target)?, target).await?;
    Ok(())
}
