// Package hosts is the adapter for machines that people own. Their owner lists
// them in the configuration, each with a price, and runs `gpubroker-agent join`
// on them; the agent waits there for work.
//
// Nothing is created and nothing is paid to anybody: the price is what an hour
// of the machine counts in budgets and comparisons. [Provider.Launch] binds a
// host to a request id, and the agent that waits on it becomes that instance;
// user data is not run. [Provider.Terminate] frees the host. The machines are
// Shared: nothing here or in the agent powers them off, and at the end of a
// lease the agent stops its tasks, no more.
//
// # What the broker does for a waiting agent
//
// An agent without work asks the join endpoint again and again. The endpoint
// authenticates it, and asks the account's [Registry]:
//
//	request, ok := registry.Waiting(host)
//
// With ok, the agent is the instance with this id now. The call is also how the
// registry knows that the host is there and idle: a host that has not asked
// within [Patience] is offered as full. An agent that comes back to waiting has
// stopped its tasks, which is the word that its former instance is gone. The
// registry is found through wrappers with managed.Find.
//
// # Lives
//
// A binding is pending until the agent has been told, then running. After
// Terminate it is stopping until the agent waits again, at most for StopTime;
// then it has ended. A host whose agent never comes back ends its instance so,
// and is not offered again before somebody waits on it. A binding that no agent
// was told of ends at once.
//
// # State
//
// Bindings outlive the broker in one JSON file, written whole, synced and
// renamed into place before a call returns. Ended ones are kept for a week. The
// file belongs to one broker process; the lock on the broker's own store keeps a
// second one away. With the file lost, bindings are forgotten and the agents are
// told to leave.
package hosts
