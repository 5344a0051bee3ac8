//! Calls about the server itself: its state, events, history and tokens; also stream contents.
//!
//! Other calls are in the modules of their objects.
//!
//! Invariant: none of these calls waits for a disk, except the calls that transfer a part of a
//! stream.

use std::sync::Arc;

use weir_api::stream::Bytes;
use weir_api::types::{
    AllHistory, EventList, HistoryList, ListAllHistory, ListEvents, ListHistory, ListTokens,
    ReceiveProgress, Removed, ServerInfo, ShowPool, ShowServer, TokenCreate, TokenCreated,
    TokenList, TokenRevoke,
};
use weir_api::{ApiError, Handle, Pending, SendStream, Streams};
use weir_block::Arena;

use crate::access::tokens;
use crate::start::recorder::patiently;
use crate::state::server::Manager;

impl Handle<ShowServer> for Manager {
    /// Shows version, addresses and memory use of the server process.
    async fn handle(&self, _call: ShowServer) -> Result<ServerInfo, ApiError> {
        Ok(ServerInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: self.start.elapsed().as_millis() as u64,
            memory_cap_bytes: self.memory.total_bytes,
            memory_used_bytes: Arena::live_bytes() as u64,
            memory: self.memory_use(),
            nbd_addresses: self.nbd_addresses(),
            iscsi_portals: self.targets.portals(),
            nfs_addresses: self.nfs.addresses().iter().map(ToString::to_string).collect(),
            nfs_group_failures: self.nfs.group_failures(),
            io_backend: weir_device::io_backend().name().to_owned(),
        })
    }
}

impl Handle<ListEvents> for Manager {
    /// Lists the events after a given event, oldest first. If there are none, waits up to `wait_ms`
    /// for the next event; the list may then be empty.
    async fn handle(&self, call: ListEvents) -> Result<EventList, ApiError> {
        Ok(self.record.events.after(call).await)
    }
}

impl Handle<ListHistory> for Manager {
    /// Lists the recorded changes of a pool with their callers and outcomes, oldest first. The
    /// history remains after the pool is destroyed or exported.
    async fn handle(&self, ListHistory { name }: ListHistory) -> Result<HistoryList, ApiError> {
        let entries = self.record.history.of(&name);
        if entries.is_empty() {
            // Without entries, `ShowPool` returns an error if the pool does not exist, for example
            // for a misspelled name.
            self.handle(ShowPool { name: name.clone() }).await?;
        }
        Ok(HistoryList { pool: name, entries, next: None })
    }
}

impl Handle<ListAllHistory> for Manager {
    /// Lists the recorded changes of all pools, oldest first. The history remains after a pool is
    /// destroyed or exported.
    async fn handle(&self, _call: ListAllHistory) -> Result<AllHistory, ApiError> {
        Ok(AllHistory { entries: self.record.history.of_all(), next: None })
    }
}

impl Handle<TokenCreate> for Manager {
    /// Creates a token. Only this answer contains its secret.
    ///
    /// # Errors
    /// `Exists` if a token of this name exists.
    async fn handle(&self, call: TokenCreate) -> Result<TokenCreated, ApiError> {
        self.tokens.create(call)
    }
}

impl Handle<ListTokens> for Manager {
    /// Lists tokens by name.
    async fn handle(&self, _call: ListTokens) -> Result<TokenList, ApiError> {
        Ok(self.tokens.list())
    }
}

impl Handle<TokenRevoke> for Manager {
    /// Revokes a token. The server rejects the next call with this token.
    async fn handle(&self, call: TokenRevoke) -> Result<Removed, ApiError> {
        self.transfers.end_of_account(&tokens::account_of(&call.name));
        self.tokens.revoke(call)
    }
}

impl Streams for Manager {
    fn send_stream(&self, session: String) -> Pending<'_, Box<dyn SendStream>> {
        Box::pin(async move { self.take_send(session) })
    }

    fn receive_part(
        self: Arc<Self>,
        session: String,
        part: Bytes,
    ) -> Pending<'static, ReceiveProgress> {
        Box::pin(async move {
            let volume = self.transfers.volume_of(&session);
            let server = Arc::clone(&self);
            patiently(&self, &volume, async move { server.take_part(session, part).await }).await
        })
    }
}
