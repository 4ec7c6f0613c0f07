// stripe-sync-engine as its README says, behind Node's own HTTP server, in PROCESSES processes.
// With REFETCH=yes it asks the API for the customer, instead of believing the delivery.
import cluster from 'node:cluster'
import http from 'node:http'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

// The packages are installed elsewhere, not beside this file.
const require = createRequire(process.env.PACKAGES + '/')
const load = async (name) => import(pathToFileURL(require.resolve(name)))

const { StripeSync, runMigrations } = await load('@supabase/stripe-sync-engine')
const connectionString = process.env.DATABASE_URL
const processes = Number(process.env.PROCESSES)

if (cluster.isPrimary) {
  await runMigrations({ databaseUrl: connectionString, schema: 'stripe' })
  for (let n = 0; n < processes; n++) cluster.fork()
  cluster.on('exit', () => process.exit(1))
  process.on('SIGTERM', () => {
    for (const worker of Object.values(cluster.workers)) worker.process.kill('SIGKILL')
    process.exit(0)
  })
} else {
  const sync = new StripeSync({
    poolConfig: { connectionString, max: Math.ceil(Number(process.env.CONNECTIONS) / processes) },
    stripeSecretKey: process.env.API_KEY,
    stripeWebhookSecret: process.env.SECRET,
    revalidateObjectsViaStripeApi: process.env.REFETCH === 'yes' ? ['customer'] : [],
  })
  // It has no option for the API's address, but its client is an attribute like any other.
  const Stripe = (await load('stripe')).default
  const api = new URL(process.env.STRIPE_API)
  sync.stripe = new Stripe(process.env.API_KEY, { host: api.hostname, port: api.port, protocol: 'http', telemetry: false })

  http
    .createServer((request, response) => {
      const parts = []
      request.on('data', (part) => parts.push(part))
      request.on('end', () => {
        sync.processWebhook(Buffer.concat(parts), request.headers['stripe-signature']).then(
          () => response.writeHead(200, { 'content-length': 0 }).end(),
          (error) => {
            console.error(error)
            response.writeHead(500, { 'content-length': 0 }).end()
          },
        )
      })
    })
    .listen(Number(process.env.PORT), '127.0.0.1')
}
